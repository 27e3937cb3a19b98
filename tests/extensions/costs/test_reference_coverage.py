"""The table of models and devices: where the constants of each pair come from."""

from collections import Counter
from functools import cache

import pytest

from scripts.reference_coverage import AMD, MODELS, SHOWN, Answers, answers, measured_rows


@cache
def table() -> Answers:
    return answers()


def test_most_models_and_devices_have_measurements_or_kernel_tables() -> None:
    assert (len(MODELS), len(SHOWN)) == (20, 10)
    kinds = Counter(result.kind for (_, device), result in table().items() if device in SHOWN)
    assert kinds.total() == 200
    assert kinds["measured"] + kinds["tables"] >= 160


@pytest.mark.parametrize("device", ["l4", *AMD])
def test_device_without_kernel_tables_has_scaled_costs_or_rejects_a_model(
    device: str,
) -> None:
    kinds = {table()[model.name, device].kind for model in MODELS}
    assert kinds <= {"scaled", "refused"}


@pytest.mark.parametrize(
    ("model", "device", "kind"),
    [
        ("gpt-oss-120b", "h100", "measured"),
        ("Kimi-K2.5", "b300", "measured"),
        ("MiniMax-M2.5", "b300", "measured"),
        ("gpt-oss-120b", "b300", "tables"),
        ("DeepSeek-R1", "gb200", "tables"),
        ("gpt-oss-120b", "a100", "scaled"),  # no table has its experts on A100
        ("DeepSeek-R1", "l40s", "scaled"),
    ],
)
def test_coverage_table_states_the_source_of_costs_for_each_pair(
    model: str, device: str, kind: str
) -> None:
    assert table()[model, device].kind == kind


def test_rejected_model_leaves_no_room_for_a_cache_on_the_device() -> None:
    for result in table().values():
        if result.kind == "refused":
            assert "leave no room for a KV cache" in result.detail


def test_measured_pairs_are_sorted_and_state_the_weight_format() -> None:
    rows = measured_rows(table())
    pairs = [(model, device) for model, _, device, *_ in rows]
    assert pairs == sorted(pairs)
    weights = {model: name for model, name, *_ in rows}
    assert weights["qwen3-32b"] == "BF16"
    assert weights["qwen3-32b-fp8"] == "FP8 in blocks"
