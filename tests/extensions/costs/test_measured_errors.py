"""The table of measured errors by situation, and the row that applies to a server."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from app.extensions.costs.error_model import Situation, read_errors
from app.extensions.costs.measured_errors import (
    MIN_RUNS,
    errors_like,
    errors_table,
    measured_errors,
    situation_name,
)
from app.extensions.costs.published_errors import read_published

DENSE = Situation(
    family="Llama",
    weights="fp8",
    has_experts=False,
    device="h100",
    devices=2,
    expert_parallel=False,
    data_parallel=False,
    version=32,
)


def test_documentation_has_the_table_of_the_shipped_errors() -> None:
    page = Path(__file__).parents[3] / "docs/accuracy.md"
    assert errors_table() in page.read_text()


def test_rows_cover_all_measured_runs_once() -> None:
    runs = Counter(
        situation_name(error.situation)
        for error in (*read_errors(), *read_published())
        if error.tpot is not None
    )
    rows = {row.situation: row.tpot.runs for row in measured_errors() if row.tpot}
    assert rows == {name: count for name, count in runs.items() if count >= MIN_RUNS}


def test_published_runs_count_as_measured() -> None:
    row = errors_like(
        msgspec.structs.replace(DENSE, weights="int4", has_experts=True, device="rtx5090")
    )
    assert row.situation == "mixture of experts, INT4, Blackwell of workstations"
    assert row.servers == 9
    assert row.tpot is not None and row.tpot.runs == 21


def test_row_of_a_situation_has_its_median_and_p90() -> None:
    row = errors_like(DENSE)
    assert row.situation == "dense, FP8, Hopper"
    assert row.tpot is not None and row.ttft is not None
    errors = sorted(
        abs(1 - 2.718281828459045**-error.tpot)
        for error in read_errors()
        if error.tpot is not None
        and not error.situation.has_experts
        and error.situation.weights == "fp8"
        and error.situation.device in ("h100", "h200")
    )
    assert row.tpot.median == pytest.approx(errors[len(errors) // 2])
    assert row.tpot.p90 == pytest.approx(errors[int(0.9 * len(errors))])
    assert str(row).startswith("measured errors: dense, FP8, Hopper: TPOT 4% (p90 6%) in 36 runs")


@pytest.mark.parametrize("change", [{"device": "l40s"}, {"weights": "mxfp4"}])
def test_situation_that_was_not_measured_is_named(change: dict[str, str]) -> None:
    row = errors_like(msgspec.structs.replace(DENSE, **change))
    assert "no server like this was measured (dense, " in str(row)
    assert row.tpot is None
