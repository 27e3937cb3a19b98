"""Fleets that are simulated in several processes."""

from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.engine.profile import Profile
from tests.callbacks import ignore
from tests.workbench.runs.test_fleet_parts import results
from tests.workbench.runs.test_simulation import REAL, load_of
from workbench.runs.simulation import Simulation, SimulationPlan, simulate


class FailingCosts:
    """Costs of a profile, which cannot be computed."""

    def __init__(self, profile: Profile) -> None:
        self.least_s = 0.01

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        raise ZeroDivisionError


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


def test_processes_simulate_groups_of_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of([(0.01, 20, 5)] * 50)
    plan = SimulationPlan(profile=REAL, pods=5)
    monkeypatch.setattr("workbench.runs.simulation.MIN_DIVIDED_REQUESTS", 50)
    monkeypatch.setattr("workbench.runs.group_processes.GROUP_RATE", 1.0)
    finished: list[int] = []
    monkeypatch.setattr("workbench.runs.simulation.REQUESTS_PER_PROGRESS", 10)
    outcome = simulate(load, plan, finished.append, processes=2)
    assert len(finished) > 2
    monkeypatch.undo()
    assert results(outcome) == results(simulate(load, plan))


def test_error_in_the_process_of_a_group_ends_the_simulation() -> None:
    load = load_of([(0.01, 20, 5)] * 50)
    plan = SimulationPlan(profile=REAL, pods=4, step_costs=FailingCosts)
    with pytest.raises(ZeroDivisionError):
        Simulation(load, plan, ignore).run_in_groups(2)
