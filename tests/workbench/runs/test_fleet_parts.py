"""Fleets that are simulated in parts: the results are those of the whole fleet."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.profile import Profile
from app.extensions.costs.lora import LoraCosts
from tests.callbacks import ignore
from tests.workbench.runs.test_simulation import DRAFTED, REAL, REQUESTS, load_of, moments
from workbench.load.policies import LEAST_REQUESTS, PREFIX_AWARE
from workbench.load.priorities import PriorityClass
from workbench.runs.adapters import AdapterPlan
from workbench.runs.kv_tiers import KvTier
from workbench.runs.simulation import Simulation, SimulationOutcome, SimulationPlan, simulate
from workbench.runs.summary import summarize

GROUPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=25, max_size=25)
ADAPTERS = AdapterPlan(
    shares=(0.5, 0.25),
    max_loras=1,
    max_rank=8,
    costs=LoraCosts(step_s=0.01, adapter_s=0.001, adapter_bytes=0.0),
)
PRIORITIES = (PriorityClass(name="gold", priority=0), PriorityClass(name="silver", priority=1))
TIERS = (KvTier(name="cpu", size=1e8, bandwidth=1e9),)

FEATURES: Sequence[Mapping[str, Any]] = (
    {},
    {"adapters": ADAPTERS},
    {"priorities": PRIORITIES},
    {"tiers": TIERS},
)
"""Fields of a plan whose results depend on each pod, or on each request."""


def results(outcome: SimulationOutcome) -> list[object]:
    timeline = outcome.timeline
    return [
        moments(outcome),
        outcome.pod,
        (timeline.sequences, timeline.blocks, timeline.max_sequences, timeline.max_blocks),
        outcome.tier_uses,
        summarize(outcome, "-"),
    ]


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.none() | GROUPS,
    st.sampled_from(["random", "round-robin"]),
    st.integers(2, 5),
    st.sampled_from([REAL, DRAFTED]),
    st.sampled_from(FEATURES),
    st.integers(1, 10),
)
def test_fleet_in_parts_has_the_results_of_the_whole_fleet(
    requests: list[tuple[float, int, int]],
    groups: Sequence[tuple[int, int]] | None,
    policy: str,
    pods: int,
    profile: Profile,
    features: Mapping[str, Any],
    part_requests: int,
) -> None:
    load = load_of(requests, () if groups is None else groups[: len(requests)])
    load.classes += [part.name for part in PRIORITIES]
    load.kind.extend(number % 2 for number in range(len(load)))
    load.images += [()] * len(load)
    plan = SimulationPlan(profile=profile, pods=pods, policy=policy, **features)
    divided = Simulation(load, plan, ignore)
    assert divided.is_divisible
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.runs.fleet_parts.PART_REQUESTS", part_requests)
        outcome = divided.run_in_parts(None)
    assert results(outcome) == results(simulate(load, plan))


@pytest.mark.parametrize(
    "plan",
    [
        {"pods": 4, "policy": LEAST_REQUESTS},
        {"pods": 4, "policy": PREFIX_AWARE},
        {"pods": 4, "policy": "random", "in_flight": 2},
        {"pods": 1, "policy": "random"},
    ],
)
def test_fleet_whose_routing_depends_on_its_state_is_not_divided(plan: dict[str, Any]) -> None:
    load = load_of([(0.01, 20, 5)] * 8)
    assert not Simulation(load, SimulationPlan(profile=REAL, **plan), ignore).is_divisible
