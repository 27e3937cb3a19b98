"""Routing policies of simulated and real fleets. A pod is a number or an address."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Generic, TypeVar

RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE = (
    "random",
    "round-robin",
    "least-requests",
    "prefix-aware",
)
POLICIES = (RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE)
BLOCKS_PER_REQUEST = 25.0
"""Blocks that a request in flight counts against a pod:

2,000 tokens (125 blocks) are five requests.
"""

Pod = TypeVar("Pod")
Request = TypeVar("Request")


class IndexerError(Exception):
    """The indexer gave no scores: unreachable, an error status or an invalid response."""


class RandomChoice:
    fallbacks = 0

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, incoming: object, pods: Sequence[Pod], in_flight: Mapping[Pod, int]) -> Pod:
        return self._rng.choice(pods)


class RoundRobin:
    fallbacks = 0

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, incoming: object, pods: Sequence[Pod], in_flight: Mapping[Pod, int]) -> Pod:
        pod = pods[self._turn % len(pods)]
        self._turn += 1
        return pod


class PrefixAware(Generic[Request, Pod]):
    """Chooses the pod with the most cached blocks, less `BLOCKS_PER_REQUEST` for each request in
    flight.

    Without scores (nothing is cached, or the indexer fails) this is the pod with the fewest
    requests.
    """

    def __init__(
        self,
        scores: Callable[[Request], Mapping[Pod, float]],
        rng: Random,
    ) -> None:
        """`rng` breaks ties: the first pod would otherwise get every new prefix."""
        self._scores = scores
        self._rng = rng
        self.fallbacks = 0

    def choose(self, incoming: Request, pods: Sequence[Pod], in_flight: Mapping[Pod, int]) -> Pod:
        """Waits for the indexer first; `in_flight` is read afterwards."""
        scores: Mapping[Pod, float] = {}
        try:
            scores = self._scores(incoming)
        except IndexerError:
            self.fallbacks += 1
        worth = [scores.get(pod, 0.0) - BLOCKS_PER_REQUEST * in_flight[pod] for pod in pods]
        most = max(worth)
        best = [pod for pod, value in zip(pods, worth, strict=True) if value == most]
        return best[0] if len(best) == 1 else self._rng.choice(best)


def make_policy(
    name: str, scores: Callable[[Request], Mapping[Pod, float]], rng: Random
) -> RandomChoice | RoundRobin | PrefixAware[Request, Pod]:
    if name == RANDOM:
        return RandomChoice(rng)
    if name == ROUND_ROBIN:
        return RoundRobin()
    # Without scores, the pod with the fewest requests is the best.
    return PrefixAware(scores if name == PREFIX_AWARE else lambda request: {}, rng)
