"""Which pod gets a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from app.fleet.errors import IndexerError
from app.fleet.indexer import Incoming

RANDOM, ROUND_ROBIN, PREFIX_AWARE = "random", "round-robin", "prefix-aware"
POLICIES = (RANDOM, ROUND_ROBIN, PREFIX_AWARE)
BLOCKS_PER_REQUEST = 25.0
"""What a request in flight counts against a pod. A prefix of 2,000 tokens is 125 blocks: the pod that has it
gets its requests until it has five more in flight than another pod."""

Scores = Callable[[Incoming], Mapping[str, float]]


class Policy(Protocol):
    """Chooses one of `pods` (at least one). `in_flight` has the requests of every pod at this moment."""

    fallbacks: int
    """Requests that were routed without the indexer, because it failed."""

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """The pod that `incoming` goes to."""


class RandomChoice:
    """Any pod."""

    fallbacks = 0

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Any of them, each as likely."""
        return self._rng.choice(pods)


class RoundRobin:
    """One pod after the other."""

    fallbacks = 0

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """The one whose turn it is."""
        pod = pods[self._turn % len(pods)]
        self._turn += 1
        return pod


class PrefixAware:
    """The pod with the most cached blocks, less those that its requests in flight count for.

    Without scores (nothing is cached, or the indexer fails) this is the pod with the fewest requests.
    """

    def __init__(self, scores: Scores, rng: Random, blocks_per_request: float = BLOCKS_PER_REQUEST) -> None:
        """`rng` decides between equals: always taking the first one would give it every new prefix."""
        self._scores = scores
        self._rng = rng
        self._blocks_per_request = blocks_per_request
        self.fallbacks = 0

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Waits for the indexer; the requests in flight are those of afterwards."""
        scores: Mapping[str, float] = {}
        try:
            scores = self._scores(incoming)
        except IndexerError:
            self.fallbacks += 1
        worth = {pod: scores.get(pod, 0.0) - self._blocks_per_request * in_flight[pod] for pod in pods}
        return self._rng.choice(_best(worth))


def policy_of(name: str, scores: Scores, rng: Random) -> Policy:
    """The policy of that name, one of `POLICIES`."""
    if name == RANDOM:
        return RandomChoice(rng)
    if name == ROUND_ROBIN:
        return RoundRobin()
    return PrefixAware(scores, rng)


def _best(worth: Mapping[str, float]) -> list[str]:
    most = max(worth.values())
    return [pod for pod, value in worth.items() if value == most]
