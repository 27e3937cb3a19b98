"""What fits on a device, and the margin that decides."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from app.extensions.costs.fit import shape_of
from app.extensions.costs.shapes import CostShape
from app.extensions.costs.storage_formats import read_storage
from config.declaration import ConfigError
from tests.workbench.check.conftest import Check
from vllm_facts.devices import ALIASES, DEVICES, MORE_DEVICES, find_device
from vllm_facts.known_models import known_models
from vllm_facts.model_choice import choose_model
from workbench.check.command import run


def test_advice_fits_and_a_longer_context_does_not(check: Check) -> None:
    words = "--select M --device l4 -- vllm serve Qwen/Qwen3-8B --max-model-len"
    (finding,) = check(f"{words} 40960")
    assert finding["code"] == "M302"
    match = re.search(r"--max-model-len (\d+)", finding["fix"])
    assert match is not None
    assert [each["code"] for each in check(f"{words} {match[1]}")] == ["M304"]
    assert [each["code"] for each in check(f"{words} {int(match[1]) + 16}")] == ["M303"]


def test_parallel_size_of_the_advice_fits(check: Check) -> None:
    words = "--select M --device h100 -- vllm serve meta-llama/Llama-3.3-70B-Instruct"
    (finding,) = check(words)
    assert finding["code"] == "M301"
    match = re.search(r"--tensor-parallel-size (\d+)", finding["fix"])
    assert match is not None
    assert [each["code"] for each in check(f"{words} {match[0]}")] == ["M304"]


def test_logged_server_has_about_the_estimated_tokens(check: Check) -> None:
    """A public log of Qwen3-8B on an A100 with 40 GB, vLLM 0.19.1, has 140,960 tokens."""
    words = "--select M --device a100-40gb --vllm-version 0.19 -- vllm serve Qwen/Qwen3-8B"
    (finding,) = check(f"{words} --max-num-batched-tokens 2048")
    tokens = int(re.findall(r"cache of ([\d,]+) tokens", finding["message"])[0].replace(",", ""))
    assert tokens == pytest.approx(140_960, rel=0.05)


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        # Start logs in research/startup_logs.jsonl: layers with states, windows, latent attention,
        # encoders of images, and drafts by a module of the model
        (
            "--device rtx5090 --vllm-version 0.21 -- vllm serve Qwen/Qwen3.5-9B"
            " --gpu-memory-utilization 0.85 --max-model-len 4096 --max-num-batched-tokens 8192",
            36.91 * 4096,
        ),
        (
            "--device rtx5090 --vllm-version 0.21 -- vllm serve Qwen/Qwen3.5-9B -tp 2"
            " --gpu-memory-utilization 0.85 --max-model-len 4096 --max-num-batched-tokens 8192",
            169.82 * 4096,
        ),
        (
            "--device gb10 --vllm-version 0.22 -- vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
            " --gpu-memory-utilization 0.85 --max-model-len 262144 --max-num-seqs 5"
            " --max-num-batched-tokens 8192 --kv-cache-dtype fp8 --enable-prefix-caching"
            ' --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
            6_455_296,
        ),
        (
            "--device rtx-pro-6000 --vllm-version 0.23 -- vllm serve google/gemma-4-31B-it"
            " --gpu-memory-utilization 0.94 --max-model-len 32768 --max-num-seqs 20"
            " --max-num-batched-tokens 8192",
            97_541,
        ),
        (
            "--device mi300x --vllm-version 0.11 -- vllm serve google/gemma-3-27b-it"
            " --max-model-len 4096 --max-num-batched-tokens 8192",
            205_696,
        ),
        (
            "--device h200 --vllm-version 0.11 -- vllm serve deepseek-ai/DeepSeek-R1-0528 -tp 8"
            " --max-model-len 8192",
            635_648,
        ),
        (
            "--device h100 --vllm-version 0.19 -- vllm serve MiniMaxAI/MiniMax-M2.5 -tp 4"
            " --gpu-memory-utilization 0.95 --max-model-len 128000 --max-num-seqs 10"
            " --max-num-batched-tokens 8192",
            307_184,
        ),
    ],
)
def test_estimates_of_kinds_of_models_are_within_5_percent_of_logs(
    check: Check, words: str, tokens: float
) -> None:
    (finding,) = check(f"--select M {words}")
    found = int(re.findall(r"cache of ([\d,]+) tokens", finding["message"])[0].replace(",", ""))
    assert found == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("length", ["-1", "auto"])
def test_automatic_context_fits_if_there_are_tokens_with_the_margin(
    check: Check, length: str
) -> None:
    words = f"--select M --device l4 -- vllm serve {{}} --max-model-len {length}"
    assert [each["code"] for each in check(words.format("Qwen/Qwen3-8B"))] == ["M304"]
    assert [each["code"] for each in check(words.format("Qwen/Qwen3.5-9B"))] == ["M303"]


def test_options_that_take_memory_count(check: Check) -> None:
    def tokens(words: str, device: str = "a100-80gb") -> int:
        (finding,) = check(f"--select M --device {device} -- vllm serve {words}")
        text = re.findall(r"cache of ([\d,]+) tokens", finding["message"])[0]
        return int(text.replace(",", ""))

    qwen = "Qwen/Qwen3.5-35B-A3B-FP8 --max-model-len 8192"
    drafts = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
    assert tokens(f"{qwen} --language-model-only") > tokens(qwen) > tokens(f"{qwen} {drafts}")
    assert tokens(f"{qwen} --enable-prefix-caching") < tokens(qwen)
    dense = "Qwen/Qwen3-32B -tp 2 --max-model-len 8192"
    assert tokens(f"{dense} --max-num-seqs 8") > tokens(dense)
    assert tokens(dense, "h100-nvl") < tokens(dense, "rtx-pro-6000")  # without a switch
    modelopt = "someone/Qwen3-32B-NVFP4"
    assert tokens(f"{modelopt} --quantization modelopt_fp4") == pytest.approx(
        2 * tokens(modelopt), rel=0.01
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**400},
        {"layer_types": ["linear_attention"] * 100_000},
        {"layer_types": [["full_attention"]]},
        {"layer_types": ["full_attention"] * 3 + ["x" * 10_000]},
        {"hidden_size": float("nan")},
        {"sliding_window": -1},
        {"index_topk_freq": 0},
        {"text_config": {"text_config": {"text_config": []}}},
        {"quantization_config": {"quant_method": "awq", "bits": 10**30}},
        {"linear_num_value_heads": 1, "linear_key_head_dim": 0},
    ],
)
def test_hostile_shape_is_checked_or_left_unchecked(
    check: Check, tmp_path: Path, fields: dict[str, object]
) -> None:
    config = {
        **{"architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 4},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024},
        **{"vocab_size": 1000, "max_position_embeddings": 4096},
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    status = run(
        ["--device", "l4", "--model-config", str(tmp_path / "config.json"), "--", "vllm", "serve"]
    )
    assert status in (0, 1, 2)


def test_memory_of_an_unnamed_device_counts(check: Check) -> None:
    words = "--select M --device-memory {} -- vllm serve Qwen/Qwen3-8B"
    assert [each["code"] for each in check(words.format("12GiB"))] == ["M301"]
    assert [each["code"] for each in check(words.format("80GiB"))] == ["M304"]


@pytest.mark.parametrize(
    "name", ["a" * 5_000, "/models--" + "-" * 5_000, "~no-user-has-this-name/x", "a\0b", "\ud800"]
)
def test_name_that_no_file_can_have_leaves_the_memory_unchecked(check: Check, name: str) -> None:
    (finding,) = check(f"--select M --device l4 -- vllm serve {shlex.quote(name)}")
    assert finding["code"] == "M305"


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.3-70B-Instruct", "someone/novel-405B"])
@pytest.mark.parametrize(("size", "code"), [("20", "M305"), ("0.5", "M305"), ("0", "M301")])
def test_weights_in_the_memory_of_the_host_leave_the_memory_unchecked(
    check: Check, model: str, size: str, code: str
) -> None:
    words = f"vllm serve {model} --cpu-offload-gb {size}"
    (finding,) = check(f"--select M --device h100 -- {words}")
    assert finding["code"] == code


def test_unknown_size_leaves_the_memory_unchecked(check: Check) -> None:
    findings = check("--select M --device h100 -- vllm serve someone/model")
    assert [each["code"] for each in findings] == ["M305"]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("someone/novel-405B", "M301"),
        ("someone/novel-405B-A3B-NVFP4", "M301"),
        ("someone/novel-30B-A3B", "M305"),
        ("someone/novel-100B", "M305"),  # 93 GiB, if it has 8 bits
        ("someone/novel-3b", "M305"),
    ],
)
def test_weights_of_an_unknown_shape_are_those_of_the_name(
    check: Check, model: str, code: str
) -> None:
    findings = check(f"--select M --device h200 -- vllm serve {model}")
    assert [each["code"] for each in findings] == [code]
    assert check(f"--select M301 --device h200 -- vllm serve {model} -tp 8") == []


@pytest.mark.parametrize("name", [*DEVICES, *MORE_DEVICES, "RTX 4090", "NVIDIA L40S", "DGX Spark"])
def test_devices_have_a_memory(name: str) -> None:
    assert 4 < find_device(name).memory / (1 << 30) < 300


def test_each_device_has_one_row() -> None:
    assert DEVICES.keys() & MORE_DEVICES.keys() == set()
    assert ALIASES.keys() & {*DEVICES, *MORE_DEVICES} == set()
    assert set(ALIASES.values()) <= {*DEVICES, *MORE_DEVICES}


def test_fast_links_are_those_of_a_switch() -> None:
    assert find_device("h100").has_switch
    assert not find_device("l40s").has_switch


def test_unknown_device_is_refused_with_a_similar_name() -> None:
    with pytest.raises(ConfigError, match="did you mean rtx4090"):
        find_device("rtx4091")


def _shape(model: str) -> CostShape | None:
    return shape_of(choose_model(model, skips_check=True), "")


@pytest.mark.parametrize("suffix", ["", "-FP8", "-AWQ", "-BF16"])
def test_copies_of_all_known_models_have_their_shape(suffix: str) -> None:
    for name in list(known_models())[::23]:
        original = _shape(name)
        copied = _shape(f"another-owner/{name.rpartition('/')[2]}{suffix}")
        if original is None or copied is None:
            continue
        for field in ("hidden_size", "num_hidden_layers", "vocab_size", "sliding_window"):
            assert getattr(copied, field) == getattr(original, field), (name, field)
        assert copied.cached_bytes(1, 2) == original.cached_bytes(1, 2), name
        assert copied.computed_parameters == original.computed_parameters, name


def test_weights_of_a_repack_are_in_its_format() -> None:
    """A model of 8.03 billion weights, whose tables of 1.05 billion stay in 16 bits."""
    sizes = {}
    for name in ("unsloth/X", "neuralmagic/X-FP8", "a/X-quantized.w8a8", "a/X-AWQ-INT4"):
        shape = _shape(name.replace("X", "Meta-Llama-3.1-8B-Instruct"))
        assert shape is not None
        storage = read_storage(shape.quantization_config, "")
        sizes[name] = round(storage.model_bytes(shape) / 1e9, 1)
    assert sizes == {
        "unsloth/X": 16.1,
        "neuralmagic/X-FP8": 9.1,
        "a/X-quantized.w8a8": 9.1,
        "a/X-AWQ-INT4": 5.7,
    }


@pytest.mark.parametrize(
    ("folder", "model"),
    [
        ("/models/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/models/llama-3.1-8b-instruct/", "meta-llama/Llama-3.1-8B-Instruct"),
        ("s3://bucket/deepseek-r1-distill-llama-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"),
        ("/hub/models--Qwen--Qwen3-8B/snapshots/b968", "Qwen/Qwen3-8B"),
    ],
)
def test_folder_that_is_elsewhere_has_the_shape_of_the_model_with_its_name(
    check: Check, folder: str, model: str
) -> None:
    (finding,) = check(f"--select M --device h100 -- vllm serve {folder} --max-model-len 8192")
    assert finding["code"] == "M304"
    assert finding["message"].endswith(f"the shape is that of {model}, by the name of the folder")


@pytest.mark.parametrize("folder", ["/models/served-model", "/", "//", "/models--", "s3://", "~"])
def test_folder_with_another_name_has_no_shape(check: Check, folder: str) -> None:
    (finding,) = check(f"--select M --device h100 -- vllm serve {folder}")
    assert finding["code"] == "M305"


def test_folder_with_a_config_has_its_shape(check: Check, tmp_path: Path) -> None:
    (tmp_path / "Qwen3-8B").mkdir()
    config = {**known_models()["Qwen/Qwen3-8B"], "num_hidden_layers": 4}
    (tmp_path / "Qwen3-8B" / "config.json").write_text(json.dumps(config))
    (finding,) = check("--select M --device h100 -- vllm serve ./Qwen3-8B")
    assert finding["code"] == "M304"
    assert "weights 3.8 GiB" in finding["message"]
