"""Profiles of a model's config.json and a device's data sheet."""

from pathlib import Path

import pytest

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.profile import CostConstants, Profile
from app.core.engine.step_cost import StepCost
from app.extensions.costs.datasheet import datasheet_profile, profile_of
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.sheet_overheads import MEASURED_OVERHEADS
from config import ConfigError
from vllm_facts.devices import DEVICES
from vllm_facts.known_models import config_of

QWEN: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
MIXTRAL: dict[str, object] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}


BANDWIDTH = 5.3e12
FLOPS = 1307.4e12
LINK = 0.448e12


def profile_with(
    config: dict[str, object], device: str = "mi300x", devices: int = 1, **changes: object
) -> Profile:
    """A profile; of a device without constants of kernels unless another is given."""
    options = EngineOptions(tensor_parallel_size=devices)
    return datasheet_profile({**config, **changes}, device, options)


def test_step_cost_constants_follow_from_the_model_and_the_datasheet() -> None:
    cost = profile_with(QWEN).cost
    linear = 40 * (5120 * (40 + 16) * 128 + 40 * 128 * 5120 + 3 * 5120 * 17408)
    assert cost.weights == pytest.approx(2 * (linear + 151936 * 5120) / (BANDWIDTH * 0.85))
    assert cost.per_token == pytest.approx(2 * linear / (FLOPS * 0.65))
    assert cost.per_context == pytest.approx(2 * 2 * 8 * 128 * 40 / (BANDWIDTH * 0.85))
    assert cost.per_attention == pytest.approx(4 * 40 * 128 * 40 / (FLOPS * 0.45))
    overhead = MEASURED_OVERHEADS["MI300X 192 GB"]
    assert cost.base == pytest.approx(1e-3 + 40 * overhead.layer_s)
    assert cost.per_sequence == pytest.approx(10e-6 + overhead.sequence_s)
    assert (cost.p, cost.slowdown) == (6, 0)


def test_computed_latencies_match_the_measured_mi300x_servers() -> None:
    """Six runs of `vllm bench latency` by ROCm: seconds a token by the sequences of a batch."""
    config = config_of("nvidia/Llama-3.1-70B-Instruct-FP8")
    options = EngineOptions(tensor_parallel_size=8, vllm_version="0.11.1")
    profile = datasheet_profile(config, "mi300x", options)
    assert "are within 8 % (TPOT)" in profile.checked
    for sequences, measured_s in ((1, 7.888e-3), (4, 8.946e-3), (16, 10.669e-3), (128, 22.067e-3)):
        batch: Batch[SequenceState] = Batch()
        batch.tokens = batch.sequences = sequences
        batch.context = 1152 * sequences
        assert StepCost(profile.cost).seconds(batch, 0.0, idle=False) == pytest.approx(
            measured_s, rel=0.1
        )


def test_computed_kv_block_count_is_within_2_percent_of_real_vllm() -> None:
    engine = datasheet_profile(QWEN, "h100", limits={"max_num_seqs": 256}).engine
    assert engine.num_gpu_blocks == pytest.approx(18038, rel=0.02)  # what a real vLLM had
    assert (engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len) == (
        8192,
        256,
        40960,
    )


@pytest.mark.parametrize(
    ("device", "batch"),
    [
        ("h100", (8192, 1024)),
        ("h200", (8192, 1024)),
        ("a100", (2048, 256)),
        ("b200", (16384, 1024)),
        ("mi300x", (16384, 1024)),
    ],
)
def test_step_limits_of_a_profile_equal_the_device_defaults_of_vllm(
    device: str, batch: tuple[int, int]
) -> None:
    engine = profile_with(QWEN, device).engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == batch
    few = datasheet_profile(QWEN, device, limits={"max_num_batched_tokens": 128}).engine
    assert few.max_num_seqs == 128


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_has_a_profile_that_states_what_was_verified(device: str) -> None:
    profile = profile_with(MIXTRAL, device, 8)
    assert f"mixture of few experts, on {DEVICES[device].name}" in profile.checked
    assert DEVICES[device].sheet in profile.source and "\n" not in profile.checked
    assert profile.cost.weights > 0 and profile.engine.num_gpu_blocks > 2


def test_tensor_parallel_devices_share_the_weights_and_the_kv_cache() -> None:
    one_device = profile_with(QWEN).cost
    four_devices = profile_with(QWEN, devices=4).cost
    assert four_devices.weights == pytest.approx(one_device.weights / 4)
    assert four_devices.base == pytest.approx(one_device.base + 40 * 2 * 12e-6)
    summed = 40 * 2 * 2 * 5120 * 2 * 3 / 4 / LINK
    assert four_devices.per_token == pytest.approx(one_device.per_token / 4 + summed)
    assert four_devices.per_context == pytest.approx(one_device.per_context / 4)
    # Eight heads of keys and values: the 20 devices have one each, some of them the same.
    assert profile_with(QWEN, devices=20).cost.per_context == pytest.approx(
        one_device.per_context / 8
    )


@pytest.mark.parametrize(
    "quantization, bits",
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + (16 + 4) / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            4 + 16 / 128,
        ),
        ({"quant_method": "mxfp4"}, 4.25),
    ],
)
def test_reading_time_of_weights_is_proportional_to_their_bits(
    quantization: dict[str, object], bits: float
) -> None:
    plain = profile_with(QWEN).cost
    packed = profile_with(QWEN, quantization_config=quantization).cost
    table = 2 * 151936 * 5120 / (BANDWIDTH * 0.85)
    assert packed.weights - table == pytest.approx((plain.weights - table) * bits / 16)
    in_8bit = quantization["quant_method"] == "fp8"
    assert packed.per_token == pytest.approx(plain.per_token * (1307.4 / 2614.9 if in_8bit else 1))
    assert (
        profile_with(QWEN, quantization_config=quantization).engine.num_gpu_blocks
        > profile_with(QWEN).engine.num_gpu_blocks
    )


def test_simulated_step_reads_only_the_experts_that_its_tokens_use() -> None:
    cost = profile_with(MIXTRAL, devices=2).cost
    experts = 32 * 8 * 3 * 4096 * 14336
    assert cost.expert_weights == pytest.approx(2 * experts / (BANDWIDTH * 0.85 * 2))
    assert cost.expert_share == 2 / 8
    assert cost.per_token < 2 * experts / (FLOPS * 0.65 * 2) / 3  # two of eight are computed
    few = CostConstants(expert_weights=1e-3, expert_share=0.25)
    assert seconds(few, 1) == pytest.approx(0.25e-3)
    assert seconds(few, 2) == pytest.approx((1 - 0.75**2) * 1e-3)
    assert seconds(few, 1000) == pytest.approx(1e-3)


def seconds(cost: CostConstants, tokens: int) -> float:
    batch: Batch[SequenceState] = Batch()
    batch.tokens = tokens
    return StepCost(cost).seconds(batch, 0.0, idle=False)


@pytest.mark.parametrize(
    "device, devices, changes, rule",
    [
        (
            "h10",
            1,
            {},
            "device h10: must be one of h100, h200, a100, l40s, mi300x, b200, b300, gb200, gb300,"
            " rtx-pro-6000, l4, mi355x, rtx3090, rtx4090, rtx5090,",
        ),
        ("h100", 3, {}, "tensor-parallel-size 3: the 40 attention heads of "),
        ("h100", 1, {"architectures": ["Qwen3ForCausalLm"]}, "did you mean Qwen3ForCausalLM?"),
        ("h100", 1, {"hidden_size": -1}, "Expected `int` >= 1 - at `$.hidden_size`"),
        (
            "h100",
            1,
            {"head_dim": None, "hidden_size": 5121},
            "must be a multiple of num_attention_heads",
        ),
        ("h100", 1, {"num_key_value_heads": 80}, "num_key_value_heads (80) must not exceed"),
        ("l40s", 1, {"num_hidden_layers": 80}, "leave no room for a KV cache"),
        (
            "h100",
            1,
            {"quantization_config": {"quant_method": "magic"}},
            "quant_method magic must be one of",
        ),
        (
            "h100",
            1,
            {"num_experts": 4, "num_experts_per_tok": 8},
            "must not exceed the number of experts",
        ),
        (
            "h100",
            1,
            {"audio_config": {"depth": 32}},
            "audio_config: Qwen3ForCausalLM has an encoder of audio",
        ),
        (
            "h100",
            1,
            {"text_config": {**QWEN, "moe_latent_size": 512}},
            "moe_latent_size: Qwen3ForCausalLM has experts of a compressed vector",
        ),
        (
            "h100",
            1,
            {"ssm_state_size": 128},
            "ssm_state_size: Qwen3ForCausalLM has state-space layers",
        ),
        (
            "h100",
            1,
            {"kv_lora_rank": 512, "index_topk": 2048, "index_topk_freq": 4},
            "index_topk_freq: Qwen3ForCausalLM has an index that several layers share",
        ),
        (
            "h100",
            1,
            {"kv_lora_rank": 512, "index_topk": 2048, "q_lora_rank": 1536},
            "index_n_heads must not be 0 if index_topk is set",
        ),
        (
            "h100",
            1,
            {"hybrid_override_pattern": "M*"},
            "hybrid_override_pattern must have a letter for each hidden layer",
        ),
        (
            "h100",
            1,
            {"layers_block_type": ["mamba", {}] * 20},
            "Expected `str` matching regex",
        ),
        (
            "h100",
            1,
            {"mamba_d_state": 16},
            "mamba_d_state: Qwen3ForCausalLM has state-space layers",
        ),
        (
            "h100",
            1,
            {"layer_types": ["linear_attention"] * 40},
            "has layers of linear_attention, and",
        ),
        (
            "h100",
            1,
            {"architectures": ["JambaForCausalLM"]},
            "JambaForCausalLM is not supported",
        ),
    ],
)
def test_impossible_configuration_is_rejected_with_a_one_line_error(
    device: str, devices: int, changes: dict[str, object], rule: str
) -> None:
    with pytest.raises(ConfigError) as error:
        profile_with(QWEN, device, devices, **changes)
    assert rule in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content, rule",
    [
        (None, "cannot be read"),
        ("{", "is not valid JSON"),
        ("[" * 99999, "is not valid JSON"),
        ("[]", "Expected `object`"),
    ],
)
def test_invalid_config_file_is_rejected_with_a_one_line_error(
    tmp_path: Path, content: str | None, rule: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rule) as error:
        profile_of("auto", "h100", str(path))
    assert str(path) in str(error.value)
