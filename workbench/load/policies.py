"""Routing policies of simulated and real fleets. A pod is a number or an address."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Generic, TypeVar

from app.extensions.plugins.policies import PolicyMaker
from config import UsageError

RANDOM = "random"
ROUND_ROBIN = "round-robin"
LEAST_REQUESTS = "least-requests"
PREFIX_AWARE = "prefix-aware"
POLICIES = (RANDOM, ROUND_ROBIN, LEAST_REQUESTS, PREFIX_AWARE)
DEFAULT_POLICIES = (RANDOM, ROUND_ROBIN, PREFIX_AWARE)
"""Policies that a fleet compares by default, before those of plugins."""
BLOCKS_PER_REQUEST = 25.0
"""Cached blocks that weigh as much as one request in flight.

A prefix of 2,000 tokens (125 blocks) weighs as much as five requests.
"""

Pod = TypeVar("Pod")
Request = TypeVar("Request")


class IndexerError(Exception):
    """The indexer gave no scores: unreachable, an error status or an invalid response."""


class RandomChoice:
    """Chooses a random pod."""

    fallbacks = 0

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, incoming: object, pods: Sequence[Pod], in_flight: Mapping[Pod, int]) -> Pod:
        """Returns the pod for a request."""
        return self._rng.choice(pods)


class RoundRobin:
    """Chooses one pod after another."""

    fallbacks = 0

    def __init__(self) -> None:
        self._choices = 0

    def choose(self, incoming: object, pods: Sequence[Pod], in_flight: Mapping[Pod, int]) -> Pod:
        """Returns the pod for a request."""
        pod = pods[self._choices % len(pods)]
        self._choices += 1
        return pod


class PrefixAware(Generic[Request, Pod]):
    """Chooses the pod with the most cached blocks and the least load.

    Each request in flight weighs as `BLOCKS_PER_REQUEST` blocks. Without scores (nothing is cached,
    or the indexer fails) this is the pod with the fewest requests.
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
        """Returns the pod for a request.

        Waits for the indexer first; `in_flight` is read afterwards.
        """
        scores: Mapping[Pod, float] = {}
        try:
            scores = self._scores(incoming)
        except IndexerError:
            self.fallbacks += 1
        values = [scores.get(pod, 0.0) - BLOCKS_PER_REQUEST * in_flight[pod] for pod in pods]
        best_value = max(values)
        best_pods = [pod for pod, value in zip(pods, values, strict=True) if value == best_value]
        if len(best_pods) == 1:
            return best_pods[0]
        return self._rng.choice(best_pods)


class FewestRequests:
    """Chooses a pod of a fixed fleet as `LEAST_REQUESTS` does, and counts its requests.

    It knows the pods with the fewest requests, where the policy looks at all pods each time.
    """

    def __init__(self, pods: Iterable[int], rng: Random) -> None:
        self._counts = dict.fromkeys(pods, 0)
        """Requests in flight, by pod."""
        self._rng = rng
        self._minimum = 0
        self._levels: list[list[int]] = [sorted(self._counts), []]
        """The pods with each number of requests, in ascending order: a request moves one pod.

        The last list is empty.
        """

    def choose(self) -> int:
        """Returns the pod for a request, which is in flight from now on."""
        minimum = self._minimum
        levels = self._levels
        least = levels[minimum]
        place = 0
        if len(least) > 1:
            place = self._rng.choice(range(len(least)))
        pod = least.pop(place)
        self._counts[pod] = minimum + 1
        insort(levels[minimum + 1], pod)
        if not least:
            self._minimum += 1
        if levels[-1]:
            levels.append([])
        return pod

    def end(self, pod: int) -> None:
        """Notes that a request of a pod has ended."""
        count = self._counts[pod]
        level = self._levels[count]
        del level[bisect_left(level, pod)]
        count -= 1
        self._counts[pod] = count
        insort(self._levels[count], pod)
        self._minimum = min(self._minimum, count)


def make_policy(
    name: str, scores: Callable[[Request], Mapping[Pod, float]], rng: Random
) -> RandomChoice | RoundRobin | PrefixAware[Request, Pod]:
    """Makes the policy of that name from `POLICIES`."""
    if name == RANDOM:
        return RandomChoice(rng)
    if name == ROUND_ROBIN:
        return RoundRobin()
    if name == LEAST_REQUESTS:
        # Without scores, the pod with the fewest requests is the best.
        return PrefixAware(_no_scores, rng)
    return PrefixAware(scores, rng)


def _no_scores(request: object) -> Mapping[Pod, float]:
    return {}


def policies_of(
    names: Sequence[str], plugin_policies: Mapping[str, PolicyMaker]
) -> dict[str, PolicyMaker]:
    """Returns the makers of these policies; without names, of the default and all plugin policies.

    Raises:
        UsageError: A name is unknown.
    """
    makers: dict[str, PolicyMaker] = {name: partial(make_policy, name) for name in POLICIES}
    makers |= plugin_policies
    for name in names:
        if name not in makers:
            raise UsageError(
                f"argument --policies: invalid choice: {name!r}"
                f" (choose from {', '.join(map(repr, makers))})"
            )
    return {name: makers[name] for name in names or (*DEFAULT_POLICIES, *plugin_policies)}
