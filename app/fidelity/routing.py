"""Which pod of a simulated fleet gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from app.fidelity.prefix_blocks import GroupedRequest

RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE = "random", "round-robin", "least-requests", "prefix-aware"
POLICIES = (RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE)
BLIND = frozenset({RANDOM, ROUND_ROBIN})
"""They look at nothing: each pod can be simulated for itself."""
BLOCKS_PER_REQUEST = 25
"""What a request in flight counts against a pod, as in `python -m app fleet`."""

Cached = Callable[[GroupedRequest], Sequence[int]]
"""How many blocks of a request's prompt each pod has."""


class Policy(Protocol):
    def choose(self, request: GroupedRequest, in_flight: Sequence[int]) -> int:
        """The number of a pod; `in_flight` are the requests that each has now."""


class RandomChoice:
    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: GroupedRequest, in_flight: Sequence[int]) -> int:
        return self._rng.randrange(len(in_flight))


class RoundRobin:
    def choose(self, request: GroupedRequest, in_flight: Sequence[int]) -> int:
        return request.number % len(in_flight)


class LeastRequests:
    """One of those that have the fewest in flight, by chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: GroupedRequest, in_flight: Sequence[int]) -> int:
        least = min(in_flight)
        best = [pod for pod, requests in enumerate(in_flight) if requests == least]
        return best[0] if len(best) == 1 else self._rng.choice(best)


class PrefixAware:
    """The pod with the most of the prompt, less what it has in flight: an indexer without delay."""

    def __init__(self, rng: Random, cached: Cached) -> None:
        self._rng = rng
        self._cached = cached

    def choose(self, request: GroupedRequest, in_flight: Sequence[int]) -> int:
        worth = [
            blocks - BLOCKS_PER_REQUEST * requests
            for blocks, requests in zip(self._cached(request), in_flight, strict=True)
        ]
        most = max(worth)
        best = [pod for pod, value in enumerate(worth) if value == most]
        return best[0] if len(best) == 1 else self._rng.choice(best)


def policy_of(name: str, seed: int, cached: Cached) -> Policy:
    """The policy of that name, one of `POLICIES`."""
    rng = Random(f"{seed}/{name}")
    if name == RANDOM:
        return RandomChoice(rng)
    if name == ROUND_ROBIN:
        return RoundRobin()
    return LeastRequests(rng) if name == LEAST_REQUESTS else PrefixAware(rng, cached)
