"""Pods of a simulated fleet that join after a cold start, drain, and leave when they are idle; their use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from msgspec import Struct

from app.lab.load.autoscale import Autoscaling, Look, Sample

JOIN, SCRAPE, LOOK = range(3)
"""Kinds of events, in their order at one moment."""
Phases = tuple[float, float, float]
"""Pods that load, are ready and drain."""


@dataclass(slots=True)
class Life:
    """Moments of a pod, in seconds: start of loading, readiness, last moment to get requests, end."""

    begun_s: float
    ready_s: float
    drain_s: float = inf
    gone_s: float = inf


class Autoscaler:
    """Starts and drains pods by a policy, which sees their metrics as of the last scrape of each.

    `start` makes a new pod, numbered from 0 on; `sample` returns the metrics of a pod at a time.
    """

    def __init__(
        self,
        plan: Autoscaling,
        pods: int,
        begin_s: float,
        seed: int,
        start: Callable[[], None],
        sample: Callable[[int, float], Sample],
    ) -> None:
        self._plan, self._begin_s, self._start, self._sample = plan, begin_s, start, sample
        self._rng = Random(f"{seed}/scrapes")
        self.lives: list[Life] = []
        self.ready: list[int] = []
        """Pods that get requests, in the order of joining."""
        self._loading: list[int] = []
        self._samples: dict[int, Sample] = {}
        self._events: list[tuple[float, int, int]] = []
        """Heap of times, kinds and pods; -1 for a look."""
        policy, self.next_s = plan.policy, begin_s
        pods = min(max(pods, policy.least), policy.most)
        self._decide = policy.start(pods)
        for _ in range(self._within_bounds(Look(0.0, pods, ()))):
            self._add(begin_s, begin_s)
        self._push(begin_s + plan.every_s, LOOK, -1)

    def go_on(self) -> None:
        """Handles the next event, which is due at `next_s`."""
        at_s, kind, number = heappop(self._events)
        if kind == LOOK:
            self._look(at_s)
        elif kind == JOIN and number in self._loading:
            self._loading.remove(number)
            self._join(number, at_s)
        elif kind == SCRAPE and number in self.ready:
            self._samples[number] = self._sample(number, at_s)
            self._push(at_s + self._plan.scrape_s, SCRAPE, number)
        self.next_s = self._events[0][0]

    def end(self, end_s: float, idle_s: Mapping[int, float]) -> list[Life]:
        """Returns the lives that began before `end_s`; `idle_s` has the end of each pod's last request."""
        for number, life in enumerate(self.lives):
            life.gone_s = min(end_s, max(life.drain_s, idle_s.get(number, -inf)))
        return [life for life in self.lives if life.begun_s < end_s]

    def _look(self, at_s: float) -> None:
        samples = [self._samples[number] for number in self.ready if number in self._samples]
        pods = len(self.ready) + len(self._loading)
        wanted = self._within_bounds(Look(at_s - self._begin_s, pods, samples))
        for _ in range(wanted - pods):
            self._add(at_s, at_s + self._plan.cold_start_s)
        for _ in range(pods - wanted):
            # As a ReplicaSet: pods that are not ready go first, then those that were ready for less time.
            victim = (self._loading or self.ready).pop()
            self.lives[victim].drain_s = at_s
        self._push(at_s + self._plan.every_s, LOOK, -1)

    def _within_bounds(self, look: Look) -> int:
        return min(max(self._decide(look), self._plan.policy.least), self._plan.policy.most)

    def _add(self, at_s: float, ready_s: float) -> None:
        number = len(self.lives)
        self.lives.append(Life(at_s, ready_s))
        self._start()
        if ready_s > at_s:
            self._loading.append(number)
            self._push(ready_s, JOIN, number)
        else:
            self._join(number, at_s)

    def _join(self, number: int, at_s: float) -> None:
        self.ready.append(number)
        # Targets of Prometheus have moments of their own within an interval.
        self._push(at_s + self._rng.random() * self._plan.scrape_s, SCRAPE, number)

    def _push(self, at_s: float, kind: int, number: int) -> None:
        heappush(self._events, (at_s, kind, number))
        self.next_s = self._events[0][0]


class Interval(Struct, frozen=True):
    """A part of the run; pods are means."""

    begin_s: float
    requests_per_s: float
    loading: float
    ready: float
    draining: float
    missed: int | None
    """Requests sent then that missed a limit; None without limits."""
    gpu_hours: float


def pods_over(lives: Sequence[Life], begin_s: float, width_s: float, count: int) -> Iterator[Phases]:
    """Yields the mean pods that load, are ready and drain in each interval of `width_s` seconds."""
    phases = (
        [(it.begun_s, min(it.ready_s, it.gone_s)) for it in lives],
        [(it.ready_s, min(it.drain_s, it.gone_s)) for it in lives],
        [(max(it.drain_s, it.ready_s), it.gone_s) for it in lives],
    )
    for place in range(count):
        low_s, high_s = begin_s + place * width_s, begin_s + (place + 1) * width_s
        loading, ready, draining = (
            sum(max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in spans) / width_s
            for spans in phases
        )
        yield loading, ready, draining


def intervals(
    lives: Sequence[Life], send_s: Sequence[float], missed: Sequence[bool], devices: int, count: int
) -> tuple[Interval, ...]:
    """Divides a run; `missed` has a value for each request, or is empty without limits."""
    begin_s = min(send_s)
    width_s = max(max(it.gone_s for it in lives) - begin_s, 1e-9) / count
    places = [min(int((at_s - begin_s) / width_s), count - 1) for at_s in send_s]
    sent, late = Counter(places), Counter(it for it, is_late in zip(places, missed, strict=False) if is_late)
    parts = []
    for place, pods in enumerate(pods_over(lives, begin_s, width_s, count)):
        missed_then, hours = late[place] if missed else None, sum(pods) * width_s * devices / 3600
        parts.append(Interval(place * width_s, sent[place] / width_s, *pods, missed_then, hours))
    return tuple(parts)


def pod_seconds(lives: Iterable[Life]) -> float:
    """Returns the seconds of all pods, from the start of their loading until they are gone."""
    return sum(it.gone_s - it.begun_s for it in lives)
