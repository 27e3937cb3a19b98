"""Costs as a sum over kernels: what they follow, and how near they come to measured servers."""

from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.profile import CostConstants, Profile
from app.core.engine.step_cost import StepCost, interpolate
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.kernel_constants import ASYNCHRONOUS, HOPPER, KERNELS
from app.extensions.costs.kernels import expected_experts, expert_shares, norm
from app.extensions.costs.shapes import cost_shape
from tests.extensions.costs.test_datasheet import MIXTRAL, QWEN
from vllm_facts.accelerator import GIB
from vllm_facts.devices import DEVICES

FP8: dict[str, object] = {"quant_method": "fp8"}
POINTS = st.lists(
    st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, unique_by=itemgetter(0)
).map(sorted)


def profile_with(
    device: str = "h100", devices: int = 1, version: str = "", **changes: object
) -> Profile:
    options = EngineOptions(tensor_parallel_size=devices, vllm_version=version)
    return datasheet_profile({**QWEN, **changes}, device, options)


def seconds(cost: CostConstants, tokens: int, decodes: int = 0, context: int = 0) -> float:
    """A step of so many decodes, or of one prompt."""
    batch: Batch[SequenceState] = Batch()
    batch.tokens = tokens
    batch.sequences = decodes or 1
    batch.context = context
    if not decodes:
        batch.prefills = 1
        batch.attention = tokens * tokens / 2
    return StepCost(cost).seconds(batch, 0.0, idle=False)


@pytest.mark.parametrize(
    "device",
    [name for name in KERNELS if DEVICES[name].memory > 35 * GIB],  # with room for the model
)
def test_step_time_grows_with_step_size_and_falls_with_more_devices(device: str) -> None:
    one_device = profile_with(device).cost
    four_devices = profile_with(device, 4).cost
    steps = [seconds(one_device, tokens) for tokens in (256, 1024, 4096, 8192)]
    assert steps == sorted(steps) and steps[-1] > 10 * steps[0]
    assert (
        seconds(one_device, 8, decodes=8, context=80_000)
        > seconds(one_device, 8, decodes=8)
        > seconds(one_device, 1, decodes=1)
    )
    for tokens in (1, 64):
        assert seconds(four_devices, tokens) < seconds(one_device, tokens)
    # What is launched in each layer does not shrink with the devices.
    assert seconds(four_devices, 1, decodes=1) > seconds(one_device, 1, decodes=1) / 4


def test_decode_step_uses_75_to_85_percent_of_the_device_bandwidth() -> None:
    weights = 2 * (40 * (5120 * 56 * 128 + 40 * 128 * 5120 + 3 * 5120 * 17408) + 151936 * 5120)
    cost = profile_with().cost
    assert (
        0.75 < weights / 3.35e12 / (seconds(cost, 1, decodes=1) - cost.base - cost.decodes) < 0.85
    )


def test_smaller_number_formats_shorten_large_steps() -> None:
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    for few, many in ((1, 64), (16, 4096)):
        bf16, fp8, nvfp4 = (
            [
                seconds(profile_with("b200", quantization_config=kind).cost, tokens)
                for tokens in (few, many)
            ]
            for kind in (None, FP8, modelopt)
        )
        assert bf16[1] > fp8[1] > nvfp4[1]
        assert bf16[0] / fp8[0] < 2


def test_sliding_window_limits_the_context_of_its_layers() -> None:
    layers = ["sliding_attention", "full_attention"] * 20
    full = profile_with().cost
    half = profile_with(sliding_window=128, layer_types=layers).cost
    assert half.window == 128 and half.window_share == 0.5
    near, far = (seconds(cost, 1, decodes=1, context=100) for cost in (full, half))
    assert near == pytest.approx(far)
    grown = [seconds(cost, 1, decodes=1, context=100_000) - near for cost in (full, half)]
    assert grown[1] == pytest.approx(grown[0] / 2, rel=0.01)


def test_shared_expert_is_computed_in_addition_to_the_routed_experts() -> None:
    experts = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    # All steps run as graphs: otherwise launches hide the kernels of medium steps.
    options = EngineOptions(tensor_parallel_size=4, max_cudagraph_capture_size=16384)
    alone, beside = (
        datasheet_profile(
            {**QWEN, **experts, "shared_expert_intermediate_size": size}, "h100", options
        ).cost.products
        for size in (0, 5632)
    )
    assert alone
    for (_, alone_s), (_, beside_s) in zip(alone, beside, strict=True):
        assert beside_s > alone_s


def test_expert_routing_cost_does_not_shrink_with_the_number_of_devices() -> None:
    sparse = {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 4,
    }
    one_device = dict(profile_with(devices=1, **sparse).cost.products)[8192]
    eight_devices = dict(profile_with(devices=8, **sparse).cost.products)[8192]
    routing_s = 4 * 8192 * 8 * HOPPER["routed_ns"] * 1e-9
    assert eight_devices > one_device / 8 + routing_s * 7 / 8
    slowdowns = [profile_with(devices=count).cost.slowdown for count in (1, 2, 8)]
    assert slowdowns == sorted(slowdowns, reverse=True) and slowdowns[0] == ASYNCHRONOUS.slowdown


@given(experts=st.integers(1, 512), data=st.data())
def test_each_token_chooses_its_number_of_experts_and_no_expert_twice(
    experts: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(1, experts))
    shares = expert_shares(experts, chosen)
    assert sum(shares) == pytest.approx(chosen)
    assert list(shares) == sorted(shares, reverse=True)
    assert 0 < shares[-1] <= shares[0] <= 1


def test_tokens_use_fewer_experts_than_with_even_choices() -> None:
    even = [256 * (1 - (1 - 8 / 256) ** tokens) for tokens in (8, 64, 512)]
    used = [expected_experts(tokens, 256, 8) for tokens in (8, 64, 512)]
    assert used == sorted(used)
    for used_count, even_count in zip(used, even, strict=True):
        assert 0.8 * even_count < used_count < even_count
    assert expected_experts(1, 256, 8) == pytest.approx(8)


def test_triton_experts_are_slower_on_blackwell_alone() -> None:
    config = {
        **QWEN,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "quantization_config": {**FP8, "weight_block_size": [128, 128]},
    }
    for device, is_slower in (("b200", True), ("b300", True), ("h200", False)):
        default, triton = (
            datasheet_profile(
                config,
                device,
                EngineOptions(tensor_parallel_size=4, moe_backend=backend),
            ).cost
            for backend in ("auto", "triton")
        )
        assert (seconds(triton, 8192) > 1.2 * seconds(default, 8192)) == is_slower


@pytest.mark.parametrize(
    ("device", "architecture"),
    [
        ("h200", "MiniMaxM2ForCausalLM"),
        ("b200", "Glm4MoeForCausalLM"),
        ("b200", "MixtralForCausalLM"),  # with 256 experts, it is MiniMax
    ],
)
def test_router_in_float32_costs_prompts_their_arithmetic_without_tensor_cores(
    device: str, architecture: str
) -> None:
    config = {
        **QWEN,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
    }
    in_float32 = {**config, "architectures": [architecture]}
    # All steps run as graphs: otherwise launches hide the kernels of medium steps.
    options = EngineOptions(tensor_parallel_size=4, max_cudagraph_capture_size=16384)
    plain, ieee, tf32 = (
        dict(datasheet_profile(document, device, chosen).cost.products)
        for document, chosen in (
            (config, options),
            (in_float32, options),
            (in_float32, replace(options, has_tf32=True)),
        )
    )
    shape = cost_shape(QWEN)
    operations = 2 * 8192 * 256 * shape.hidden_size * shape.layers
    least_s = operations / DEVICES[device].flops_32bit
    assert least_s < ieee[8192] - plain[8192] < 2 * least_s
    assert ieee[8192] - tf32[8192] > 0.8 * least_s
    assert plain[1] < tf32[1] <= ieee[1] < plain[1] * 1.1


def test_vllm_version_decides_whether_the_profile_uses_async_scheduling() -> None:
    old = profile_with(version="0.12.0")
    new = profile_with(version="0.15.1")
    newest = profile_with()
    assert not old.engine.async_scheduling and new.engine.async_scheduling
    assert not profile_with("mi300x", version="0.13").engine.async_scheduling
    assert new.cost == newest.cost and old.cost.base > new.cost.base


@pytest.mark.parametrize("device", ["h100", "b200", "mi300x"])
def test_kv_cache_has_the_format_of_the_checkpoint_on_every_device(device: str) -> None:
    scheme = {**FP8, "kv_cache_scheme": {"num_bits": 8}}
    algorithm = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    wide, *narrow = (
        profile_with(device, quantization_config=kind) for kind in (FP8, scheme, algorithm)
    )
    for profile in narrow:
        blocks = profile.engine.num_gpu_blocks
        assert blocks == pytest.approx(2 * wide.engine.num_gpu_blocks, abs=1)
        assert "keys and values in fp8, as the checkpoint says" in profile.checked
    assert "keys and values in 16 bits, vLLM's default" in wide.checked


@pytest.mark.parametrize(("dtype", "factor"), [("fp8", 2), ("fp8_e5m2", 2), ("bfloat16", 1)])
def test_kv_cache_dtype_option_overrides_the_checkpoint(dtype: str, factor: int) -> None:
    scheme = {**FP8, "kv_cache_scheme": {"num_bits": 8}}
    plain = profile_with(quantization_config=FP8).engine.num_gpu_blocks
    for kind in (FP8, scheme):
        config = {**QWEN, "quantization_config": kind}
        profile = datasheet_profile(config, "h100", EngineOptions(kv_cache_dtype=dtype))
        assert profile.engine.num_gpu_blocks == pytest.approx(factor * plain, abs=1)
        assert f"in {dtype}, as kv-cache-dtype says" in profile.checked


@pytest.mark.parametrize(
    ("config", "device", "rule"),
    [
        (QWEN, "mi300x", "without constants of kernels for bf16 on MI300X"),
        (MIXTRAL, "h100", "bf16, a mixture of few experts, on H100"),
        (
            {**QWEN, "quantization_config": {"quant_method": "awq", "group_size": 128}},
            "h100",
            "without a table for int4 on H100",
        ),
        (
            QWEN,
            "h100",
            "a sum over kernels; dense bf16 models on H100 are within 2 % (TPOT, median",
        ),
        (QWEN, "a100", "median of 28 runs), on A100 4 % (of 5); "),
        (QWEN, "l40s", "on A100 4 % (of 5); none on L40S was compared"),
        (
            {**QWEN, "quantization_config": {**FP8, "weight_block_size": [128, 128]}},
            "h100",
            "a sum over kernels; no dense model in fp8-block was compared with a server",
        ),
    ],
)
def test_computed_profile_states_which_assumptions_are_not_measured(
    config: dict[str, object], device: str, rule: str
) -> None:
    profile = datasheet_profile(config, device, EngineOptions(tensor_parallel_size=2))
    assert profile_with(version="0.33").checked.endswith(
        "; vLLM 0.33 is taken for 0.28, the newest known version"
    )
    assert rule in profile.checked and "\n" not in profile.checked
    assert bool(profile.cost.products) == ("sum over" in profile.checked)


@given(POINTS, st.integers(1, 2000))
def test_interpolated_kernel_time_lies_between_the_neighboring_times(
    points: list[tuple[int, float]], count: int
) -> None:
    interpolated = interpolate(points, count)
    if count in dict(points):
        assert interpolated == pytest.approx(dict(points)[count], abs=1e-9)
    lower = [value for tokens, value in points if tokens <= count] or [points[0][1]]
    upper = [value for tokens, value in points if tokens >= count]
    if upper:
        assert min(lower[-1], upper[0]) - 1e-9 <= interpolated <= max(lower[-1], upper[0]) + 1e-9


@given(st.floats(1e-9, 1), st.floats(1e-9, 1), st.floats(1, 14))
def test_combined_cost_lies_between_the_maximum_and_the_sum(a: float, b: float, p: float) -> None:
    assert max(a, b) <= norm(a, b, p) * (1 + 1e-9) <= (a + b) * (1 + 2e-9)
