"""Which pod gets a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from app.fleet.routing import Incoming, policy_of
from app.load.policies import POLICIES, IndexerError, PrefixAware, RandomChoice, RoundRobin

ANY = Incoming("/v1/completions", b"{}")
PODS = ("a", "b", "c")
IDLE = dict.fromkeys(PODS, 0)


def prefix_aware(scores: Mapping[str, float], seed: int = 1) -> PrefixAware[Incoming, str]:
    return PrefixAware(lambda incoming: scores, Random(seed), blocks_per_request=10)


def failing(incoming: Incoming) -> Mapping[str, float]:
    raise IndexerError("away")


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin()
    assert [policy.choose(ANY, PODS, IDLE) for _ in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]


def test_random_chooses_each_pod_and_the_same_ones_with_the_same_seed() -> None:
    one, same = RandomChoice(Random(5)), RandomChoice(Random(5))
    assert [one.choose(ANY, PODS, IDLE) for _ in range(20)] == [
        same.choose(ANY, PODS, IDLE) for _ in range(20)
    ]
    policy = RandomChoice(Random(5))
    counts = Counter(policy.choose(ANY, PODS, IDLE) for _ in range(3000))
    assert set(counts) == set(PODS) and min(counts.values()) > 800


def test_the_pod_with_the_longest_prefix_is_preferred() -> None:
    assert prefix_aware({"a": 3.0, "c": 4.0}).choose(ANY, PODS, IDLE) == "c"


def test_a_pod_that_is_too_busy_loses_its_prefix_to_another() -> None:
    policy = prefix_aware({"b": 45.0})
    assert policy.choose(ANY, PODS, {"a": 0, "b": 4, "c": 1}) == "b"
    assert policy.choose(ANY, PODS, {"a": 0, "b": 5, "c": 1}) == "a"


def test_without_scores_the_least_loaded_pod_is_taken() -> None:
    assert prefix_aware({}).choose(ANY, PODS, {"a": 2, "b": 1, "c": 2}) == "b"


def test_equals_share_what_is_new() -> None:
    policy = prefix_aware({})
    counts = Counter(policy.choose(ANY, PODS, IDLE) for _ in range(300))
    assert set(counts) == set(PODS)


def test_scores_of_strangers_do_not_matter() -> None:
    assert prefix_aware({"elsewhere": 99.0, "b": 1.0}).choose(ANY, PODS, IDLE) == "b"


def test_only_the_pods_that_are_offered_are_taken() -> None:
    for name in POLICIES:
        policy = policy_of(name, lambda incoming: {"a": 9.0}, Random(1))
        assert {policy.choose(ANY, ["b", "c"], IDLE) for _ in range(50)} <= {"b", "c"}


def test_an_indexer_that_fails_is_counted_and_load_decides() -> None:
    policy = PrefixAware(failing, Random(1))
    assert policy.choose(ANY, PODS, {"a": 1, "b": 1, "c": 0}) == "c"
    assert policy.choose(ANY, PODS, {"a": 0, "b": 1, "c": 1}) == "a"
    assert policy.fallbacks == 2


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_has_a_policy(name: str) -> None:
    assert policy_of(name, failing, Random(1)).choose(ANY, ["only"], {"only": 0}) == "only"


def test_load_is_looked_at_after_the_scores_have_come() -> None:
    in_flight = dict(IDLE)

    def slow(incoming: Incoming) -> Mapping[str, float]:
        in_flight["a"] = in_flight["b"] = 1  # what other requests did in the meantime
        return {}

    assert PrefixAware(slow, Random(1)).choose(ANY, PODS, in_flight) == "c"
