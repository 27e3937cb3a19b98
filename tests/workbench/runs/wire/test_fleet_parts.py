"""Fleets that are simulated in several processes."""

import pytest

from tests.workbench.runs.test_fleet_parts import results
from tests.workbench.runs.test_simulation import REAL, load_of
from workbench.runs.simulation import SimulationPlan, simulate


def test_processes_share_a_long_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of([(0.01, 20, 5)] * 50)
    plan = SimulationPlan(profile=REAL, pods=4, policy="round-robin")
    monkeypatch.setattr("workbench.runs.fleet_parts.PART_REQUESTS", 20)
    monkeypatch.setattr("workbench.runs.simulation.MIN_DIVIDED_REQUESTS", 50)
    progress: list[int] = []
    outcome = simulate(load, plan, progress.append, processes=2)
    assert progress == [26, 50]
    monkeypatch.undo()
    assert results(outcome) == results(simulate(load, plan, processes=2))
