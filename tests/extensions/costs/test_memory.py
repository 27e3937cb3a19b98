"""Blocks of the KV cache, beside what the logs of public servers say."""

from typing import Any

import pytest

from app.core.engine.profile import EngineLimits
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.memory import reserved_bytes
from app.extensions.costs.repacks import find_config
from app.extensions.costs.shapes import cost_shape
from app.extensions.costs.version_rules import MemoryUse, rules_of, version_of
from config import ConfigError
from tests.extensions.costs.test_datasheet import QWEN
from vllm_facts.accelerator import GIB
from vllm_facts.devices import DEVICES
from vllm_facts.step_defaults import step_defaults


def model(kind: str, layers: int, width: int, inner: int, kv: int, vocab: int) -> dict[str, object]:
    return {
        **{
            "architectures": [f"{kind}ForCausalLM"],
            "num_hidden_layers": layers,
            "hidden_size": width,
        },
        **{
            "intermediate_size": inner,
            "num_attention_heads": width // 128,
            "num_key_value_heads": kv,
        },
        **{"vocab_size": vocab, "max_position_embeddings": 8192, "head_dim": 128},
    }


LLAMA = model("Llama", layers=32, width=4096, inner=14336, kv=8, vocab=128256)
LLAMA_70B = model("Llama", layers=80, width=8192, inner=28672, kv=8, vocab=128256)
QWEN2 = model("Qwen2", layers=28, width=3584, inner=18944, kv=4, vocab=152064)
QWEN3_32B = model("Qwen3", layers=64, width=5120, inner=25600, kv=8, vocab=151936)
QWEN3_32B["num_attention_heads"] = 64


@pytest.mark.parametrize(
    ("version", "config", "weight_bytes", "device_name", "devices", "share", "places", "gib"),
    [
        # config_explorer/empirical-vllm-memory-results.md of llm-d/llm-d-benchmark: vLLM 0.11.0
        ("0.11.0", LLAMA, 2, "h100", 1, 0.9, 1024, 51.38),
        ("0.11.0", LLAMA_70B, 1, "h100", 2, 0.9, 1024, 32.0),
        ("0.11.0", QWEN3_32B, 2, "h100", 1, 0.9, 1024, 4.45),
        ("0.11.0", QWEN3_32B, 2, "h100", 2, 0.9, 1024, 34.49),
        # accuracy/results/v0.19.0/accuracy_report.md of llm-d-incubation/llm-d-planner: 0.16 to
        # 0.19
        ("0.16.0", QWEN, 2, "h100", 1, 0.95, 1024, 41.94),
        ("0.17.0", QWEN, 2, "h100", 1, 0.95, 1024, 45.34),
        ("0.19.0", LLAMA, 2, "h100", 1, 0.95, 1024, 58.11),
        ("0.19.0", LLAMA, 2, "h100", 4, 0.95, 1024, 67.44),
        ("0.19.0", QWEN2, 2, "h100", 1, 0.95, 1024, 58.53),
        ("0.19.0", QWEN2, 2, "h100", 2, 0.95, 1024, 63.84),
        # A card of 46 GB with 0.28, and inference-sim/residency-vllm: 18,038 blocks with 0.23
        ("0.28.0", QWEN, 2, "l40s", 1, 0.92, 256, 11.57),
        ("0.23.0", QWEN, 2, "h100", 1, 0.92, 256, 44.04),
    ],
)
def test_computed_cache_memory_matches_vllm_logs(
    version: str,
    config: object,
    weight_bytes: int,
    device_name: str,
    devices: int,
    share: float,
    places: int,
    gib: float,
) -> None:
    shape = cost_shape(config)
    device = DEVICES[device_name]
    held = (weight_bytes * shape.weights()[0] + 4 * shape.vocab_size * shape.hidden_size) / devices
    tokens = step_defaults(version_of(version)).tokens(device)
    limits = EngineLimits(num_gpu_blocks=2, max_num_seqs=places, max_num_batched_tokens=tokens)
    left = (
        device.memory * share
        - held
        - reserved_bytes(shape, devices, limits, rules_of(version, MemoryUse))
    )
    assert left / GIB == pytest.approx(gib, rel=0.025)


@pytest.mark.parametrize(
    ("name", "device_name", "options", "limits", "tokens"),
    [
        # nebius/results*/ of GloriaXimingLu/inferencex-profiling: a block is for the full layers
        ("openai/gpt-oss-120b", "h200", {"vllm_version": "0.22.0"}, 64, 16 * 104_165),
        ("openai/gpt-oss-120b", "h200", {"vllm_version": "0.22.0"}, 256, 16 * 103_690),
        # docs/reports/a100-quantization-capacity.md of cssnoeasy/a100-vllm-benchmark-blog
        ("Qwen/Qwen3-32B", "a100", {"enforce_eager": True}, 256, 39_200),
        (
            "Qwen/Qwen3-32B",
            "a100",
            {"enforce_eager": True, "kv_cache_dtype": "fp8"},
            256,
            78_400,
        ),
        ("Qwen/Qwen3-32B-AWQ", "a100", {}, 256, 214_272),
        # myoceane.fr: gpt-oss-20b with 65 % of the memory, 36.56 GiB for 12 full layers
        ("openai/gpt-oss-20b", "a100", {"gpu_memory_utilization": 0.65}, 256, 16 * 99_833),
        # Issue 21348 of vllm-project/vllm
        (
            "Qwen/Qwen3-235B-A22B-FP8",
            "h100",
            {"vllm_version": "0.11.0", "tensor_parallel_size": 4},
            1024,
            178_880,
        ),
    ],
)
def test_kv_block_counts_are_within_6_percent_of_vllm_logs(
    name: str, device_name: str, options: dict[str, Any], limits: int, tokens: int
) -> None:
    engine_options = EngineOptions(
        **({"gpu_memory_utilization": 0.9, "vllm_version": "0.19.0"} | options)
    )
    profile = datasheet_profile(
        find_config(name), device_name, engine_options, limits={"max_num_seqs": limits}
    )
    assert 16 * profile.engine.num_gpu_blocks == pytest.approx(tokens, rel=0.06)


def test_kv_block_count_depends_on_limits_and_sliding_windows() -> None:
    def blocks(version: str = "", config: object = QWEN, **limits: int) -> int:
        return datasheet_profile(
            config, "h100", EngineOptions(vllm_version=version), limits=limits
        ).engine.num_gpu_blocks

    assert blocks(max_num_seqs=256) > blocks() > blocks(max_num_batched_tokens=65536)
    assert blocks(block_size=32) == pytest.approx(blocks() / 2, abs=1)
    assert blocks("0.16.0") < blocks("0.17.0")
    assert blocks(num_gpu_blocks=1000) == 1000
    sliding = {
        **QWEN,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 20,
    }
    assert blocks(config=sliding) == pytest.approx(2 * blocks(), abs=2)


@pytest.mark.parametrize(
    "version", ["newest", "0", "0.x", "-1.2", "0.15.1; rm", "1e9.1", "0.9.2", "1.0", "0.9\n"]
)
def test_invalid_vllm_version_is_rejected_with_a_one_line_error(version: str) -> None:
    with pytest.raises(
        ConfigError, match=r"vllm-version [^\n]*: must be a version of vLLM from 0.10 to"
    ):
        datasheet_profile(QWEN, "mi300x", EngineOptions(vllm_version=version))


@pytest.mark.parametrize(
    "version", ["0.15", "v0.15.1", "0.15.2rc1", "0.15.1.dev0+g89a77b108.d20260318"]
)
def test_vllm_version_with_a_build_suffix_counts_as_its_minor_version(version: str) -> None:
    assert version_of(version).name == "0.15"
