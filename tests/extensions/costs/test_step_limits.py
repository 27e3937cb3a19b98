"""Tokens of a step and of the steps in flight, by version, device, and model."""

from __future__ import annotations

import pytest

from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.fit import estimate, shape_of
from app.extensions.costs.repacks import find_config
from app.extensions.costs.step_limits import is_text_only, step_limits
from vllm_facts.devices import DEVICES, find_device
from vllm_facts.model_choice import choose_model
from vllm_facts.step_defaults import default_sequences, step_defaults
from vllm_facts.version import PATCHES, parse_version

SMALL_MODEL = "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("model", "device", "version", "options", "tokens", "in_flight"),
    [
        # Defaults of vLLM's source: of 0.25.1, 0.26.0, 0.27.0 and 0.28.0
        ("Qwen/Qwen3-8B", "l40s", "0.25", {}, 2048, 2048),
        ("Qwen/Qwen3-8B", "l40s", "0.26", {}, 2048, 4096),
        ("Qwen/Qwen3-8B", "h100", "0.26", {}, 8192, 16384),
        ("Qwen/Qwen3-8B", "b200", "0.27", {}, 8192, 16384),
        ("Qwen/Qwen3-8B", "b200", "0.28", {}, 16384, 32768),
        ("Qwen/Qwen3-8B", "l40s", "0.28", {"pipeline-parallel-size": "4"}, 2048, 10240),
        ("Qwen/Qwen3-8B", "l40s", "0.28", {"async-scheduling": "false"}, 2048, 2048),
        ("Qwen/Qwen3-8B", "l40s", "0.28", {"max-num-batched-tokens": "512"}, 512, 1024),
        ("Qwen/Qwen3-8B", "l40s", "0.28", {"max-num-batched-tokens": "x"}, 2048, 4096),
        ("google/gemma-4-31B-it", "l40s", "0.21", {}, 2048, 2048),
        ("google/gemma-4-31B-it", "l40s", "0.25", {}, 2496, 2496),
        ("google/gemma-4-31B-it", "l40s", "0.25", {"language-model-only": "true"}, 2048, 2048),
        ("google/gemma-4-31B-it", "h100", "0.25", {}, 8192, 8192),
        ("google/gemma-4-E4B-it", "l40s", "0.25", {}, 2048, 2048),
    ],
)
def test_limits_are_those_of_the_version(
    model: str,
    device: str,
    version: str,
    options: dict[str, str | list[str]],
    tokens: int,
    in_flight: int,
) -> None:
    shape = shape_of(choose_model(model), "")
    assert shape is not None
    defaults = step_defaults(parse_version(version))
    assert step_limits(options, shape, find_device(device), defaults) == (tokens, in_flight)


@pytest.mark.parametrize("device", sorted(DEVICES))
@pytest.mark.parametrize("version", PATCHES)
def test_defaults_of_a_step_are_those_of_simulations(device: str, version: str) -> None:
    options = EngineOptions(vllm_version=version)
    engine = datasheet_profile(find_config(SMALL_MODEL), device, options).engine
    shape = shape_of(choose_model(SMALL_MODEL), "")
    assert shape is not None
    checked_device = find_device(device)
    steps = step_limits({}, shape, checked_device, step_defaults(parse_version(version)))
    assert engine.max_num_batched_tokens == steps.tokens
    assert engine.max_num_seqs == min(default_sequences(checked_device), steps.tokens)


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("language-model-only", "true", True),
        ("skip-mm-profiling", "true", True),
        ("limit-mm-per-prompt", '{"image": 0, "video": 0}', True),
        ("limit-mm-per-prompt", "image=0,video=0", True),
        ("limit-mm-per-prompt", '{"image": 0}', False),
        ("limit-mm-per-prompt", '{"image": 2, "video": 0}', False),
        ("limit-mm-per-prompt", "[" * 10_000, False),
        ("limit-mm-per-prompt", "[0, 0]", False),
        ("limit-mm-per-prompt", "", False),
    ],
)
def test_options_that_leave_out_encoders(option: str, text: str, *, expected: bool) -> None:
    assert is_text_only({option: text}) is expected


@pytest.mark.parametrize(
    ("model", "device", "version", "options", "tokens"),
    [
        # Start logs in research/startup_logs.jsonl: windows with steps in flight, a model that
        # reads videos as a whole, experts in NVFP4, and a text-only server
        (
            *("google/gemma-4-E2B-it-qat-w4a16-ct", "t4", "0.29"),
            *("--max-model-len 16384 --gpu-memory-utilization 0.9 --max-num-seqs 8", 519_681),
        ),
        (
            *("RedHatAI/gemma-4-26B-A4B-it-FP8-dynamic", "l40s", "0.25"),
            *("--max-model-len 32768 --gpu-memory-utilization 0.92", 321_600),
        ),
        (
            *("nvidia/Gemma-4-26B-A4B-NVFP4", "rtx5090", "0.20.2"),
            "--max-model-len 256000 --gpu-memory-utilization 0.85 --max-num-seqs 2"
            " --max-num-batched-tokens 16384 --kv-cache-dtype fp8 --enable-prefix-caching",
            286_007,
        ),
    ],
)
def test_logged_servers_have_about_the_estimated_tokens(
    model: str, device: str, version: str, options: str, tokens: int
) -> None:
    values: dict[str, str | list[str]] = {}
    words = options.split()
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            values[word.removeprefix("--")] = "true" if following.startswith("--") else following
    shape = shape_of(choose_model(model), "")
    assert shape is not None
    fit = estimate(shape, values, find_device(device), version)
    assert fit.tokens() == pytest.approx(tokens, rel=0.05)
