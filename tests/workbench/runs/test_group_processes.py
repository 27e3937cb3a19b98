"""Fleets whose groups of pods run in processes: the results are those of a single process."""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.engine.batch import SchedulerRules
from app.core.engine.profile import FrontCosts, Profile
from app.extensions.costs.version_rules import rules_of
from config import ConfigError
from tests.callbacks import ignore
from tests.workbench.runs.test_fleet_parts import FEATURES, GROUPS, PRIORITIES, TIERS, results
from tests.workbench.runs.test_simulation import (
    DRAFTED,
    ENGINE,
    FALLING,
    FRONTED,
    IS_SHORT,
    PLAIN,
    REAL,
    REQUESTS,
    SOON_DONE,
    WAITS,
    NoSecondStep,
    load_of,
)
from workbench.load.loads import LoadTrace
from workbench.load.policies import LEAST_REQUESTS, PREFIX_AWARE
from workbench.runs.group_processes import (
    Finished,
    GroupPlan,
    GroupProcess,
    GroupServer,
)
from workbench.runs.pod_maker import RequestMaker
from workbench.runs.simulation import Simulation, SimulationPlan, simulate

ROOMY = msgspec.structs.replace(
    PLAIN,
    engine=msgspec.structs.replace(ENGINE, num_gpu_blocks=400, max_num_seqs=3),
    front=FrontCosts(front=0.001, out_per_stream=0.004),
)
"""Nothing is preempted, so that ends are foreseen far ahead; others wait for the front's output."""
DENSE = st.lists(
    st.tuples(st.floats(0.0, 0.012), st.integers(1, 70), st.integers(1, 12)),
    min_size=10,
    max_size=60,
)
"""Gap, input and output tokens of requests that keep a few pods busy."""
LONG_ANSWERS = [(0.0, 5, 60), (0.0, 5, 60)]
LATE_PROMPTS = [*LONG_ANSWERS, *[(0.06, 70, 1), (0.012, 4, 1)] * 10]
"""Prompts in several steps end beside long answers."""
WAITING_PROMPTS = [*LONG_ANSWERS, *[(0.05, 70, 1), (0.0, 70, 1), (0.0, 70, 1)] * 8]
"""Prompts wait for the budget of such a step."""
OLD_RULES = rules_of("0.20", SchedulerRules)
"""Preempted sequences lose the tokens of the step under way, with a tier."""


class LocalConnection:
    """Answers in this process, as late as another process may."""

    def __init__(self, server: GroupServer) -> None:
        self._server = server
        self._messages: deque[Any] = deque()

    def send(self, message: object) -> None:
        self._messages.append(message)

    def recv(self) -> object:
        return self._server.answer(self._messages.popleft())


@contextmanager
def local_groups(
    plans: Sequence[GroupPlan], requests: RequestMaker, finish: Callable[[Finished], None]
) -> Iterator[list[GroupProcess]]:
    yield [
        GroupProcess(
            LocalConnection(GroupServer(pickle.loads(pickle.dumps(plan)))), plan, requests, finish
        )
        for plan in plans
    ]


@settings(max_examples=30, deadline=None)
@example(SOON_DONE, None, FRONTED, 2, 2, 0, {})
@example(WAITS, None, FRONTED, 2, 2, 0, {})
@example(IS_SHORT, None, FRONTED, 2, 2, 0, {})
@given(
    REQUESTS,
    st.none() | GROUPS,
    st.sampled_from([REAL, FRONTED, PLAIN, FALLING, DRAFTED]),
    st.integers(2, 7),
    st.integers(2, 3),
    st.sampled_from([0, 20]),
    st.sampled_from([*FEATURES, {"tiers": TIERS, "rules": OLD_RULES}]),
)
def test_fleet_in_groups_has_the_results_of_single_steps(
    requests: list[tuple[float, int, int]],
    groups: Sequence[tuple[int, int]] | None,
    profile: Profile,
    pods: int,
    processes: int,
    least: int,
    features: Mapping[str, Any],
) -> None:
    requests = [(gap_s, tokens_in, least + tokens) for gap_s, tokens_in, tokens in requests]
    load = load_of(requests, () if groups is None else groups[: len(requests)])
    load.classes += [part.name for part in PRIORITIES]
    load.kind.extend(number % 2 for number in range(len(load)))
    load.images += [()] * len(load)
    plan = SimulationPlan(profile=profile, pods=pods, policy=LEAST_REQUESTS, **features)
    stepped = simulate(load, plan, watch=ignore)
    assert results_in_groups(load, plan, processes) == [*results(stepped), stepped.preemptions]


def results_in_groups(load: LoadTrace, plan: SimulationPlan, processes: int) -> list[object]:
    divided = Simulation(load, plan, ignore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.runs.simulation.group_processes", local_groups)
        outcome = divided.run_in_groups(processes)
    return [*results(outcome), outcome.preemptions]


@settings(max_examples=40, deadline=None)
@example(LATE_PROMPTS, 2)
@example(WAITING_PROMPTS, 2)
@given(DENSE, st.integers(2, 4))
def test_busy_fleet_in_groups_has_the_results_of_single_steps(
    requests: list[tuple[float, int, int]], pods: int
) -> None:
    load = load_of(requests)
    plan = SimulationPlan(profile=ROOMY, pods=pods)
    stepped = simulate(load, plan, watch=ignore)
    assert results_in_groups(load, plan, 2) == [*results(stepped), stepped.preemptions]


def test_requests_of_groups_that_never_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.runs.pod.policies_of", lambda *limits: [NoSecondStep()])
    monkeypatch.setattr("workbench.runs.simulation.group_processes", local_groups)
    load = load_of([(0.0, 5, 5), (1.0, 5, 5), (1.0, 5, 5)])
    plan = SimulationPlan(profile=PLAIN, pods=2)
    with pytest.raises(ConfigError, match="1 of 3 requests never end"):
        Simulation(load, plan, ignore).run_in_groups(2)


@pytest.mark.parametrize(
    ("plan", "groups"),
    [
        ({"pods": 4}, 2),
        ({"pods": 1}, 0),
        ({"pods": 4, "policy": "random"}, 0),
        ({"pods": 4, "policy": PREFIX_AWARE}, 0),
        ({"pods": 4, "in_flight": 2}, 0),
    ],
)
def test_only_fleets_with_fewest_requests_have_groups(plan: dict[str, Any], groups: int) -> None:
    load = load_of([(0.001, 20, 5)] * 1001)
    assert Simulation(load, SimulationPlan(profile=REAL, **plan), ignore).max_groups() == groups
