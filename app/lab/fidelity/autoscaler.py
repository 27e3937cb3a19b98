"""Pods of a simulated fleet that join after a cold start, drain, and leave when they are idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from app.lab.load.autoscale import Autoscaling, Look, Sample

JOIN, SCRAPE, LOOK = range(3)
"""Kinds of events, in their order at one moment."""


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
