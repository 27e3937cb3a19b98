"""Lives of the pods of an autoscaled fleet, and their sums over time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from msgspec import Struct


@dataclass(slots=True)
class Life:
    """Times of a pod, in seconds: start of loading, readiness, last time to get requests, end."""

    begun_s: float
    ready_s: float
    drain_s: float = inf
    gone_s: float = inf


class Interval(Struct, frozen=True):
    """A part of the run; pods are means."""

    begin_s: float
    requests_per_s: float
    loading: float
    ready: float
    draining: float
    missed: int | None
    """Requests sent in the interval that missed a limit; None without limits."""
    gpu_hours: float


def pods_over(
    lives: Sequence[Life], begin_s: float, width_s: float, count: int
) -> Iterator[list[float]]:
    """Yields the mean pods that load, are ready and drain in each interval of `width_s` seconds."""
    phases = (
        [(life.begun_s, min(life.ready_s, life.gone_s)) for life in lives],
        [(life.ready_s, min(life.drain_s, life.gone_s)) for life in lives],
        [(max(life.drain_s, life.ready_s), life.gone_s) for life in lives],
    )
    for index in range(count):
        low_s = begin_s + index * width_s
        high_s = begin_s + (index + 1) * width_s
        means = []
        for spans in phases:
            inside_s = (
                max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in spans
            )
            means.append(sum(inside_s) / width_s)
        yield means


def pod_seconds(lives: Iterable[Life]) -> float:
    """Returns the seconds of all pods, from the start of their loading until they are gone."""
    return sum(life.gone_s - life.begun_s for life in lives)
