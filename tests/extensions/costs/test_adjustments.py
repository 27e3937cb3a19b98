"""Corrections of the kernel model by version, device and format."""

import pytest
from msgspec.structs import replace

from app.extensions.costs import adjustments
from app.extensions.costs.adjustments import (
    NO_ADJUSTMENT,
    Adjustment,
    find_adjustment,
    shipped_adjustments,
)
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.kernel_constants import ASYNCHRONOUS, KERNELS
from app.extensions.costs.kernel_sum import KernelSum
from app.extensions.costs.shapes import cost_shape
from tests.extensions.costs.test_datasheet import QWEN
from vllm_facts.devices import DEVICES
from vllm_facts.known_models import config_of


def layers_s(adjustment: Adjustment, tokens: int) -> float:
    kernel_sum = KernelSum(
        shape=cost_shape(QWEN),
        weights="bf16",
        attention_weights="bf16",
        network_weights="bf16",
        kernels=KERNELS["h100"],
        device=DEVICES["h100"],
        options=EngineOptions(),
        cache_bytes=2,
        adjustment=adjustment,
    )
    return dict(kernel_sum.constants(ASYNCHRONOUS).products)[tokens]


def adjustment_of(**values: float) -> Adjustment:
    fields: dict[str, float] = {"launch_us": 0.0, "decode": 1.0, "prefill": 1.0, **values}
    return Adjustment(device="h100", weights="bf16", has_experts=False, version=19, **fields)  # type: ignore[arg-type]


def test_launch_correction_is_added_once_per_layer_and_step() -> None:
    launched = adjustment_of(launch_us=10.0)
    for tokens in (1, 8192):
        added_s = layers_s(launched, tokens) - layers_s(NO_ADJUSTMENT, tokens)
        assert added_s == pytest.approx(40 * 10e-6)


def test_small_and_large_steps_have_separate_correction_factors() -> None:
    factors = adjustment_of(decode=0.8, prefill=1.5)
    for tokens, factor in ((1, 0.8), (64, 0.8), (2048, 1.5)):
        assert layers_s(factors, tokens) == pytest.approx(factor * layers_s(NO_ADJUSTMENT, tokens))


def test_steps_of_servers_without_graphs_take_the_launches_of_their_layers() -> None:
    launched = adjustment_of(step_launch_us=900.0)
    assert layers_s(launched, 1) == pytest.approx(40 * 900e-6)
    assert layers_s(launched, 8192) == layers_s(NO_ADJUSTMENT, 8192) > 40 * 900e-6


def test_experts_have_the_correction_of_another_device_of_the_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Adjustment(
        device="b200",
        weights="nvfp4",
        has_experts=True,
        version=19,
        launch_us=20.0,
        decode=0.9,
        prompt_launch_us=900.0,
        front_ms=3.0,
        cells=9,
    )
    table = [measured, replace(measured, has_experts=False)]

    def shipped_adjustments() -> list[Adjustment]:
        return table

    monkeypatch.setattr(adjustments, "shipped_adjustments", shipped_adjustments)
    assert find_adjustment("b300", "nvfp4", has_experts=True, version=18) == NO_ADJUSTMENT
    assert find_adjustment("b200", "nvfp4", has_experts=True, version=18) is measured
    kernels_alone = replace(measured, prompt_launch_us=None, front_ms=0.0)
    for device, has_experts, expected in (
        ("b200", True, measured),
        ("b300", True, kernels_alone),
        ("b300", False, NO_ADJUSTMENT),
        ("h100", True, NO_ADJUSTMENT),
        ("unknown", True, NO_ADJUSTMENT),
    ):
        taken = find_adjustment(device, "nvfp4", has_experts=has_experts, version=20)
        assert taken == expected


def test_correction_of_the_nearest_version_with_the_same_scheduler_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = [replace(adjustment_of(decode=0.9), version=version) for version in (12, 16, 19)]

    def shipped_adjustments() -> list[Adjustment]:
        return table

    monkeypatch.setattr(adjustments, "shipped_adjustments", shipped_adjustments)
    for version, nearest in ((11, 12), (13, 12), (14, 16), (16, 16), (18, 19), (33, 19)):
        taken = find_adjustment("h100", "bf16", has_experts=False, version=version)
        assert taken.version == nearest
    for device, weights, has_experts in (
        ("h200", "bf16", False),
        ("h100", "fp8", False),
        ("h100", "bf16", True),
    ):
        taken = find_adjustment(device, weights, has_experts=has_experts, version=16)
        assert taken == NO_ADJUSTMENT


def test_host_of_a_device_has_the_mean_time_before_the_scheduler_of_its_corrections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = [
        replace(adjustment_of(front_ms=2.0), weights="fp8"),
        replace(adjustment_of(front_ms=4.0), weights="mxfp4", prompt_launch_us=900.0),
        replace(adjustment_of(front_ms=9.0), version=12),
        replace(adjustment_of(front_ms=9.0), device="h200"),
    ]

    def shipped_adjustments() -> list[Adjustment]:
        return table

    monkeypatch.setattr(adjustments, "shipped_adjustments", shipped_adjustments)
    taken = find_adjustment("h100", "bf16", has_experts=False, version=19)
    assert taken == replace(NO_ADJUSTMENT, front_ms=3.0)
    assert find_adjustment("h100", "fp8", has_experts=False, version=19).front_ms == 2.0
    assert find_adjustment("b200", "bf16", has_experts=False, version=19) == NO_ADJUSTMENT


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("nvidia/Kimi-K2.5-NVFP4", EngineOptions(tensor_parallel_size=4)),
        (
            "MiniMaxAI/MiniMax-M2.5",
            EngineOptions(tensor_parallel_size=4, moe_backend="triton"),
        ),
    ],
)
def test_models_without_corrections_have_the_time_before_the_scheduler_of_their_host(
    monkeypatch: pytest.MonkeyPatch, model: str, options: EngineOptions
) -> None:
    def front_s(table: list[Adjustment]) -> float:
        monkeypatch.setattr(adjustments, "shipped_adjustments", lambda: table)
        return datasheet_profile(config_of(model), "b200", options).front.front

    hosts = [
        replace(adjustment_of(front_ms=milliseconds), device="b200") for milliseconds in (2, 4)
    ]
    assert front_s(hosts) - front_s([]) == pytest.approx(0.003)


def test_blackwell_has_the_time_of_a_sequence_of_other_devices() -> None:
    llama = config_of("nvidia/Llama-3.3-70B-Instruct-FP8")
    options = EngineOptions(tensor_parallel_size=4)
    costs = [datasheet_profile(llama, device, options).cost for device in ("h100", "b200")]
    assert costs[0].per_sequence == costs[1].per_sequence == ASYNCHRONOUS.sequence


def test_profile_names_the_vllm_version_of_its_correction_factors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = [replace(adjustment_of(decode=0.9), cells=6)]

    def shipped_adjustments() -> list[Adjustment]:
        return table

    monkeypatch.setattr(adjustments, "shipped_adjustments", shipped_adjustments)
    for version, text in (
        ("0.19", "; fitted to 6 cells of vLLM 0.19; "),
        ("0.18", "; fitted to 6 cells of vLLM 0.19, the nearest version with measurements; "),
    ):
        options = EngineOptions(vllm_version=version)
        assert text in datasheet_profile(QWEN, "h100", options).checked
    assert (
        "fitted to"
        not in datasheet_profile(QWEN, "h100", EngineOptions(vllm_version="0.12")).checked
    )


def test_profile_reports_measurements_of_unstated_vllm_versions() -> None:
    llama = config_of("nvidia/Llama-3.3-70B-Instruct-FP8")
    options = EngineOptions(tensor_parallel_size=4)
    checked = datasheet_profile(llama, "h100", options).checked
    assert "; fitted to 16 cells of unstated versions of vLLM; " in checked


def test_shipped_correction_factors_lie_between_0_3_and_3() -> None:
    """A larger one would mean that the kernels are wrong, which no factor can correct."""
    for adjustment in shipped_adjustments():
        assert 0.5 < adjustment.decode < 2
        assert 0.3 < adjustment.prefill < 3
        assert abs(adjustment.launch_us) < 60
        assert adjustment.cells >= 4


def test_device_without_measurements_has_no_correction_factors() -> None:
    checked = datasheet_profile(QWEN, "l40s", EngineOptions(tensor_parallel_size=2)).checked
    assert "fitted to" not in checked
