"""Options of `vllm serve` in computed profiles: what they cost and hold, and refusals."""

import pytest

from app.core.engine.profile import Profile
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.kernels import ExpertLayer, deviations_of_maximum
from config import ConfigError
from tests.extensions.costs.test_datasheet import MIXTRAL, QWEN
from tests.extensions.costs.test_kernels import FP8, seconds
from vllm_facts.version import RULE

EXPERTS: dict[str, object] = {
    **QWEN,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def profile_with(
    options: EngineOptions, config: dict[str, object] = QWEN, device: str = "h100"
) -> Profile:
    return datasheet_profile(config, device, options)


def test_pipeline_parallelism_raises_the_throughput_but_not_the_latency() -> None:
    one_stage = profile_with(EngineOptions())
    two_stages = profile_with(EngineOptions(pipeline_parallel_size=2))
    assert two_stages.devices == 2
    assert two_stages.engine.num_gpu_blocks > 2.5 * one_stage.engine.num_gpu_blocks
    assert seconds(two_stages.cost, 1, decodes=1) == pytest.approx(
        seconds(one_stage.cost, 1, decodes=1), rel=0.02
    )
    assert seconds(two_stages.cost, 4096) < 0.6 * seconds(one_stage.cost, 4096)
    delay = 2048 * (two_stages.front.front_per_token - one_stage.front.front_per_token)
    assert delay + seconds(two_stages.cost, 2048) == pytest.approx(
        seconds(one_stage.cost, 2048), rel=0.1
    )


def test_data_parallel_ranks_share_experts_but_have_separate_attention() -> None:
    four = EngineOptions(tensor_parallel_size=4, enable_expert_parallel=True)
    ranks = EngineOptions(data_parallel_size=4, enable_expert_parallel=True)
    tensor = profile_with(four, EXPERTS)
    data = profile_with(ranks, EXPERTS)
    assert data.devices == tensor.devices == 4
    assert data.engine.max_num_seqs == 4 * tensor.engine.max_num_seqs
    # Each rank stores all keys and values of its sequences, and a copy of the attention.
    assert data.engine.num_gpu_blocks < tensor.engine.num_gpu_blocks
    assert seconds(data.cost, 1, decodes=1) > seconds(tensor.cost, 1, decodes=1)


def test_limits_per_rank_are_multiplied_by_the_number_of_ranks() -> None:
    options = EngineOptions(data_parallel_size=2)
    limits = {"max_num_seqs": 100, "num_gpu_blocks": 1000}
    engine = datasheet_profile(EXPERTS, "h100", options, limits=limits).engine
    assert (engine.max_num_seqs, engine.num_gpu_blocks) == (200, 2000)


def test_busiest_expert_parallel_device_has_more_than_an_equal_share() -> None:
    layer = ExpertLayer(width=1, inner_width=1, experts=128, experts_per_row=8, ranks=4)
    assert layer.busiest_rows(8) > 3
    assert layer.busiest_rows(80_000) == pytest.approx(20_000, rel=0.02)
    assert layer.busiest_experts(8) > 3
    assert layer.busiest_experts(128) == 32
    alone = ExpertLayer(width=1, inner_width=1, experts=128, experts_per_row=8)
    assert (alone.busiest_rows(8), alone.busiest_experts(8)) == (8, 8)


def test_expected_maximum_of_normal_values_grows_with_the_sample_size() -> None:
    expected = {1: 0.0, 2: 0.564, 4: 1.029, 8: 1.424, 16: 1.766}
    for count, deviations in expected.items():
        assert deviations_of_maximum(count) == pytest.approx(deviations, abs=0.03)


def test_small_expert_batches_take_longer_with_expert_parallelism() -> None:
    shared = EngineOptions(tensor_parallel_size=4)
    whole = EngineOptions(tensor_parallel_size=4, enable_expert_parallel=True)
    costs = [profile_with(options, EXPERTS).cost for options in (shared, whole)]
    assert seconds(costs[1], 1, decodes=1) > seconds(costs[0], 1, decodes=1)


def test_eager_steps_take_at_least_the_time_of_their_kernel_launches() -> None:
    graphs = profile_with(EngineOptions())
    options = EngineOptions(enforce_eager=True, tensor_parallel_size=8)
    eager = profile_with(options)
    assert dict(eager.cost.products)[1] == pytest.approx(40 * 450e-6)
    assert dict(profile_with(options, EXPERTS).cost.products)[1] == pytest.approx(40 * 800e-6)
    assert "enforce-eager is an estimate" in eager.checked
    assert "enforce-eager" not in graphs.checked


def test_prompt_above_the_cuda_graph_size_waits_for_kernel_launches() -> None:
    costs = [
        profile_with(
            EngineOptions(tensor_parallel_size=8, max_cudagraph_capture_size=tokens), EXPERTS
        ).cost
        for tokens in (512, 2048)
    ]
    launched, graph = [seconds(cost, 1024) for cost in costs]
    assert launched > graph
    assert launched > 40 * 800e-6
    for tokens in (64, 512):
        assert seconds(costs[0], tokens) == seconds(costs[1], tokens)
    # Kernels of many tokens on one device take longer than their launches.
    one_device = profile_with(EngineOptions()).cost
    graphs = profile_with(EngineOptions(max_cudagraph_capture_size=4096)).cost
    assert seconds(one_device, 2048) == seconds(graphs, 2048)


def test_kv_block_count_depends_on_memory_utilization_and_cuda_graphs() -> None:
    blocks = [
        profile_with(options).engine.num_gpu_blocks
        for options in (
            EngineOptions(gpu_memory_utilization=0.8),
            EngineOptions(),
            EngineOptions(enforce_eager=True),
            EngineOptions(gpu_memory_utilization=0.95),
        )
    ]
    assert blocks == sorted(blocks) and len(set(blocks)) == 4


def test_16_bit_weights_are_quantized_at_load_time() -> None:
    stored = profile_with(EngineOptions(), {**QWEN, "quantization_config": FP8})
    converted = profile_with(EngineOptions(quantization="fp8"))
    assert converted.cost == stored.cost
    assert converted.engine == stored.engine


@pytest.mark.parametrize(
    ("options", "config", "device", "rule"),
    [
        (
            EngineOptions(tensor_parallel_size=6),
            QWEN,
            "h100",
            "tensor-parallel-size 6: the 40 attention heads of model config are not divisible by"
            " this size; use 5 or 8",
        ),
        (
            EngineOptions(pipeline_parallel_size=41),
            QWEN,
            "h100",
            "pipeline-parallel-size 41: model config has only 40 layers",
        ),
        (
            EngineOptions(enable_expert_parallel=True),
            QWEN,
            "h100",
            "enable-expert-parallel: model config has no experts",
        ),
        (
            EngineOptions(enable_expert_parallel=True, data_parallel_size=3),
            EXPERTS,
            "h100",
            "the 128 experts of model config cannot be divided evenly among 3 devices; use 2 or 4",
        ),
        (
            EngineOptions(quantization="awq"),
            QWEN,
            "h100",
            "quantization awq: model config has 16-bit weights, which vLLM converts only to fp8 or",
        ),
        (
            EngineOptions(quantization="awq"),
            {**QWEN, "quantization_config": FP8},
            "h100",
            "quantization awq: vLLM does not convert the weights of model config from fp8",
        ),
        (
            EngineOptions(enable_expert_parallel=True, tensor_parallel_size=2),
            MIXTRAL,
            "h100",
            "enable-expert-parallel: the cost is unknown because there are no kernel constants for"
            " bf16 on H100",
        ),
        (
            EngineOptions(pipeline_parallel_size=2),
            QWEN,
            "mi300x",
            "pipeline-parallel-size: the cost is unknown because there are no kernel constants",
        ),
        (
            EngineOptions(vllm_version="0.9.2"),
            QWEN,
            "h100",
            f"vllm-version '0.9.2': {RULE}",
        ),
    ],
)
def test_engine_options_without_known_costs_are_rejected(
    options: EngineOptions, config: dict[str, object], device: str, rule: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        datasheet_profile(config, device, options)
    assert rule in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.14.1", "; vLLM 0.14.1 is taken for 0.15, the nearest that was measured"),
        ("0.25", "; vLLM 0.25 is taken for 0.23, the nearest that was measured"),
        ("0.33", "; vLLM 0.33 is taken for 0.28, the newest known version"),
        ("0.13", "; vLLM 0.13 is taken for 0.12, the nearest that was measured"),
    ],
)
def test_version_without_constants_uses_the_nearest_version(version: str, text: str) -> None:
    assert text in profile_with(EngineOptions(vllm_version=version)).checked
    nearest = text.split(" is taken for ")[1].split(",")[0]
    measured = profile_with(EngineOptions(vllm_version=nearest))
    assert "is taken for" not in measured.checked
    assert measured.engine == profile_with(EngineOptions(vllm_version=version)).engine
