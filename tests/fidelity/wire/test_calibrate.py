"""A fit: constants that were known are found again; what is written; what is refused."""

from __future__ import annotations

from app.lab.fidelity.search import mapped
from tests.fidelity.test_calibrate import problem


def test_processes_find_what_one_does() -> None:
    made = problem()
    candidates = [[0.1, 0.0, 0.0], [0.0, -0.2, 0.3]]
    with mapped(2) as spread:
        assert spread(made.loss, candidates) == [made.loss(x) for x in candidates]
