"""How near simulations with costs of kernels come to measured servers."""

from statistics import median

import pytest

from benchmarks.cells import compare, read_cells
from tests.needs import RECORDING

CELLS = RECORDING.parent / "truth" / "cells"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("family", "tpot", "tpot_p90", "ttft"),
    [("llama", 0.05, 0.16, 0.13), ("gpt-oss", 0.10, 0.30, 0.25)],
)
def test_simulated_latencies_match_measured_servers(
    family: str, tpot: float, tpot_p90: float, ttft: float
) -> None:
    """A third of the cells of a family; `python -m benchmarks.cells` plays all."""
    cells = [
        cell
        for cell in read_cells(CELLS, ["cells.csv"])
        if family in cell.model and cell.concurrency <= 16 and cell.client == "inferencemax"
    ][::2]
    results = [compare(CELLS, 10, cell) for cell in cells]
    tpot_errors = sorted(abs(result.tpot) for result in results if result.tpot is not None)
    ttft_errors = [abs(result.ttft) for result in results if result.ttft is not None]
    assert len(cells) > 10
    assert median(tpot_errors) < tpot
    assert tpot_errors[int(0.9 * len(tpot_errors))] < tpot_p90
    assert median(ttft_errors) < ttft
