"""How near simulations with costs of kernels come to measured servers."""

from statistics import median

import pytest

from benchmarks.cells import cells, errors
from tests.needs import RECORDING

CELLS = RECORDING.parent / "truth" / "cells"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("family", "tpot", "tpot_p90", "ttft"),
    [("llama", 0.05, 0.16, 0.13), ("gpt-oss", 0.10, 0.30, 0.25)],
)
def test_measured_servers_are_met(family: str, tpot: float, tpot_p90: float, ttft: float) -> None:
    """A third of the cells of a family; `python -m benchmarks.cells` plays all."""
    few = [
        cell for cell in cells(CELLS) if family in cell["model"] and int(cell["concurrency"]) <= 16
    ][::2]
    found = [errors(CELLS, 10, cell) for cell in few]
    sizes = sorted(abs(error) for error, _ in found)
    assert len(few) > 10
    assert median(sizes) < tpot and sizes[int(0.9 * len(sizes))] < tpot_p90
    assert median(abs(error) for _, error in found) < ttft
