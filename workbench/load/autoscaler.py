"""The autoscaler of a simulated or real fleet: it starts and drains pods by a policy.

A policy looks at the metrics of a fleet, as they were last scraped, and returns the number of pods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from app.extensions.plugins.policies import AutoscalerStart, Look, Sample
from workbench.load.hpa import HorizontalPodAutoscaler
from workbench.load.pod_lives import Life

TTFT_SHARES = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99}
TTFT_WINDOW_S = 60.0
"""Time before a scrape whose first tokens count, as in `rate(...[1m])`."""
METRICS = ("waiting", "running", "kv_cache_usage", *TTFT_SHARES)
# Kinds of events, in their order at the same time.
JOIN = 0
SCRAPE = 1
LOOK = 2


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """A policy with its bounds."""

    min_pods: int
    max_pods: int
    start: AutoscalerStart


Policy = ScalingPolicy | HorizontalPodAutoscaler


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """A policy, and the times of the cluster around it in seconds."""

    policy: Policy
    cold_start_s: float
    every_s: float = 15.0
    """Time between two looks."""
    scrape_s: float = 15.0
    """Time between two scrapes of a pod."""
    policy_text: str = ""
    """The policy as in the flag."""


class Autoscaler:
    """Starts and drains pods by a policy, which sees the last scrape of each pod."""

    def __init__(
        self,
        plan: Autoscaling,
        *,
        pods: int,
        begin_s: float,
        seed: int,
        start_pod: Callable[[], None],
        sample: Callable[[int, float], Sample],
    ) -> None:
        """Starts the first `pods` pods, within the bounds of the policy.

        `start_pod` makes a new pod, numbered from 0 on; `sample` returns the metrics of a pod at a
        time.
        """
        self._plan = plan
        self._begin_s = begin_s
        self._start_pod = start_pod
        self._sample = sample
        self._rng = Random(f"{seed}/scrapes")
        self.lives: list[Life] = []
        self.ready: list[int] = []
        """Pods that get requests, in the order of joining."""
        self._loading: list[int] = []
        self._samples: dict[int, Sample] = {}
        self._events: list[tuple[float, int, int]] = []
        """Heap of times, kinds and pods; -1 for a look."""
        self.next_s = begin_s
        pods = min(max(pods, plan.policy.min_pods), plan.policy.max_pods)
        self._decide = plan.policy.start(pods)
        for _ in range(self._wanted_pods(Look(0.0, pods, ()))):
            self._launch(begin_s, begin_s)
        self._schedule(begin_s + plan.every_s, LOOK, -1)

    def handle_event(self) -> None:
        """Handles the next event, which is due at `next_s`."""
        now_s, kind, number = heappop(self._events)
        if kind == LOOK:
            self._look(now_s)
        elif kind == JOIN and number in self._loading:
            self._loading.remove(number)
            self._join(number, now_s)
        elif kind == SCRAPE and number in self.ready:
            self._samples[number] = self._sample(number, now_s)
            self._schedule(now_s + self._plan.scrape_s, SCRAPE, number)
        self.next_s = self._events[0][0]

    def finish(self, end_s: float, last_token_s: Mapping[int, float]) -> list[Life]:
        """Returns the lives that began before `end_s`.

        `last_token_s` has the end of each pod's last request.
        """
        for number, life in enumerate(self.lives):
            life.gone_s = min(end_s, max(life.drain_s, last_token_s.get(number, -inf)))
        return [life for life in self.lives if life.begun_s < end_s]

    def _look(self, now_s: float) -> None:
        samples = [self._samples[number] for number in self.ready if number in self._samples]
        pods = len(self.ready) + len(self._loading)
        wanted = self._wanted_pods(Look(now_s - self._begin_s, pods, samples))
        for _ in range(wanted - pods):
            self._launch(now_s, now_s + self._plan.cold_start_s)
        for _ in range(pods - wanted):
            # As a ReplicaSet does: pods that are not ready go first, then the latest ready ones.
            victim = (self._loading or self.ready).pop()
            self.lives[victim].drain_s = now_s
        self._schedule(now_s + self._plan.every_s, LOOK, -1)

    def _wanted_pods(self, look: Look) -> int:
        policy = self._plan.policy
        return min(max(self._decide(look), policy.min_pods), policy.max_pods)

    def _launch(self, now_s: float, ready_s: float) -> None:
        number = len(self.lives)
        self.lives.append(Life(now_s, ready_s))
        self._start_pod()
        if ready_s > now_s:
            self._loading.append(number)
            self._schedule(ready_s, JOIN, number)
        else:
            self._join(number, now_s)

    def _join(self, number: int, now_s: float) -> None:
        self.ready.append(number)
        # Prometheus scrapes each target at its own time within an interval.
        self._schedule(now_s + self._rng.random() * self._plan.scrape_s, SCRAPE, number)

    def _schedule(self, event_s: float, kind: int, number: int) -> None:
        heappush(self._events, (event_s, kind, number))
        self.next_s = self._events[0][0]
