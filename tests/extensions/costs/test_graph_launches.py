"""Experts of 4 bits on devices without such arithmetic, and launches between CUDA graphs."""

import pytest

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.step_cost import StepCost
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.graph_launches import TRITON_LAYER_US
from app.extensions.costs.repacks import find_config
from app.extensions.costs.situations import make_situation
from workbench.runs.intervals import errors_of

SMALL = "openai/gpt-oss-20b"
LARGE = "openai/gpt-oss-120b"
LARGE_LAYERS = 36


def decode_ms(model: str, sequences: int, *, device: str, version: str, devices: int = 1) -> float:
    """Returns the milliseconds of a step of decodes, each with 500 tokens of context."""
    options = EngineOptions(tensor_parallel_size=devices, vllm_version=version)
    profile = datasheet_profile(find_config(model), device, options)
    batch: Batch[SequenceState] = Batch()
    batch.tokens = sequences
    batch.sequences = sequences
    batch.context = 500 * sequences
    return 1000 * StepCost(profile.cost).seconds(batch, 0.0, idle=False)


@pytest.mark.parametrize(
    ("model", "devices", "sequences", "measured_ms"),
    [
        # One sequence: two people (vllm-project/vllm#22331), and the author of #22428.
        (LARGE, 1, 1, 11.1),
        (LARGE, 1, 1, 11.4),
        (SMALL, 1, 1, 7.95),
        # Many sequences: #22428.
        (SMALL, 1, 16, 11.4),
        (SMALL, 1, 64, 17.0),
        (SMALL, 1, 128, 21.7),
        (LARGE, 2, 16, 12.5),
        (LARGE, 2, 64, 21.0),
        (LARGE, 2, 128, 30.7),
    ],
)
def test_experts_in_mxfp4_on_a100_are_near_measured_steps(
    model: str, devices: int, sequences: int, measured_ms: float
) -> None:
    step_ms = decode_ms(model, sequences, device="a100", version="0.10", devices=devices)
    assert step_ms == pytest.approx(measured_ms, rel=0.12)


@pytest.mark.parametrize("version", ["", "0.10"])
def test_interval_contains_the_two_measured_requests_and_is_within_a_factor_of_four(
    version: str,
) -> None:
    options = EngineOptions(vllm_version=version)
    situation = make_situation(find_config(LARGE), "a100", options)
    errors = errors_of(situation, concurrency=1, input_tokens=100, output_tokens=500)
    step_ms = decode_ms(LARGE, 1, device="a100", version=version)
    for measured_ms in (11.1, 11.4):
        assert errors.tpot.low * step_ms < measured_ms < errors.tpot.high * step_ms
    assert errors.tpot.high / errors.tpot.low <= 4


def test_whole_graphs_remove_the_least_time_of_a_layer() -> None:
    least_ms = LARGE_LAYERS * TRITON_LAYER_US / 1000
    before = decode_ms(LARGE, 1, device="a100", version="0.10")
    after = decode_ms(LARGE, 1, device="a100", version="0.11")
    assert before > least_ms > after
    # Large steps wait for the device, not for the host.
    assert decode_ms(LARGE, 256, device="a100", version="0.10") == pytest.approx(
        decode_ms(LARGE, 256, device="a100", version="0.11"), rel=0.01
    )


@pytest.mark.parametrize(
    ("model", "device"),
    [
        (SMALL, "h100"),  # FlashAttention 3 has sinks
        ("Qwen/Qwen3-8B", "a100"),  # no sinks, so FlashAttention 2
    ],
)
def test_other_attention_has_no_least_time_of_a_layer(model: str, device: str) -> None:
    before = decode_ms(model, 1, device=device, version="0.10")
    assert before == pytest.approx(decode_ms(model, 1, device=device, version="0.11"))


def test_experts_in_mxfp4_on_a100_have_constants_of_kernels_without_a_table() -> None:
    profile = datasheet_profile(find_config(LARGE), "a100", EngineOptions())
    assert "without a table for mxfp4 on A100" in profile.checked
