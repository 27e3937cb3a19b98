"""Parts of a fleet whose pods do not depend on each other, for several processes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.load.loads import LoadTrace
from workbench.load.policies import RandomChoice, RoundRobin
from workbench.runs.pod import PodFigures
from workbench.runs.token_gaps import TokenGaps

PART_REQUESTS = 50_000
"""Least number of requests of a part, except for the last one: some seconds of work."""
MIN_DIVIDED_REQUESTS = 4 * PART_REQUESTS
"""Least number of requests of a load that is divided, as processes take a second to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPart:
    """Adjacent pods and their requests, when a policy has chosen the pod of each request."""

    first_pod: int
    """Number of the first pod in the fleet."""
    sizes: Sequence[int]
    """Number of requests of each pod."""
    load: LoadTrace
    """The requests, pod by pod."""
    adapters: list[str | None]
    """Adapter of each request; empty without adapters."""
    begin_s: float
    """Start of the run of the fleet."""
    largest_image: int
    """Tokens of the largest image of the fleet's load; 0 without images."""

    @property
    def pods(self) -> list[int]:
        """Pod of each request, counted from the first pod of the part."""
        return [pod for pod, size in enumerate(self.sizes) for _ in range(size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """Results of a part, whose requests are in the order of the part."""

    first_s: array[float]
    last_s: array[float]
    finished: int
    """Number of requests that have ended."""
    figures: list[PodFigures]
    gaps: TokenGaps


def route(
    policy: RandomChoice | RoundRobin, pods: Sequence[int], pod_of: array[int]
) -> list[array[int]]:
    """Chooses the pod of each request; fills `pod_of`, and returns the requests of each pod."""
    requests_of: list[array[int]] = [array("i") for _ in pods]
    for number in range(len(pod_of)):
        pod = policy.choose(None, pods, {})
        pod_of[number] = pod
        requests_of[pod].append(number)
    return requests_of


def parts(
    load: LoadTrace,
    requests_of: Sequence[array[int]],
    *,
    adapters: Sequence[str | None],
    begin_s: float,
    largest_image: int,
) -> Iterator[FleetPart]:
    """Yields the parts of a fleet; `requests_of` has the numbers of the requests of each pod."""
    first_pod = 0
    numbers = array("i")
    for pods, requests in enumerate(requests_of, 1):
        numbers += requests
        if len(numbers) < PART_REQUESTS and pods < len(requests_of):
            continue
        yield FleetPart(
            first_pod=first_pod,
            sizes=[len(requests) for requests in requests_of[first_pod:pods]],
            load=load.rows_of(numbers),
            adapters=[adapters[number] for number in numbers if adapters],
            begin_s=begin_s,
            largest_image=largest_image,
        )
        first_pod = pods
        numbers = array("i")
