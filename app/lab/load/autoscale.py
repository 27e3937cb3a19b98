"""Autoscaling: policies of simulated and real fleets, and the pods of a simulated fleet over time.

A policy looks at the metrics of a fleet, as they were scraped last, and returns the wanted number
of pods. The HPA is that of `autoscaling/v2` with a metric of type Pods (docs/fidelity.md,
"Autoscaling").
"""

import math
import re
from argparse import SUPPRESS
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random

from msgspec import Struct

from app.base.metrics.table import FIRST_TOKEN
from config.declaration import UsageError
from config.flags import FlagParser, as_argument, duration_of, number_of, size_of, whole_number
from config.kinds import parse_duration

TTFT_SHARES = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99}
TTFT_WINDOW_S = 60.0
"""Time before a scrape whose first tokens count, as in `rate(...[1m])`."""
BUILT_IN = ("hpa", "schedule")
METRICS = ("waiting", "running", "kv_cache_usage", *TTFT_SHARES)
PODS = whole_number(1, 10_000)
SECONDS = as_argument(parse_duration)
MILLI = 1000
"""The HPA counts in thousandths: its quantities are whole thousandths."""

Sample = Mapping[str, float]
"""`METRICS` of a pod at a scrape:

counts, a share from 0 to 1, and quantiles of the TTFT in seconds.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet at a look of its autoscaler."""

    at_s: float
    """Seconds since the first request."""
    pods: int
    """Pods that load or are ready; draining ones do not count."""
    samples: Sequence[Sample]
    """Last scrapes of the ready pods; a pod that was not scraped yet has none."""


Decide = Callable[[Look], int]
"""Returns the wanted number of pods. Called for each look in order."""
AutoscalerStart = Callable[[int], Decide]
"""Returns the decisions of a run that starts with so many pods."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """A policy, whose number of pods is from `least` to `most`."""

    least: int
    most: int
    start: AutoscalerStart


def histogram_quantile(share: float, values: Sequence[float]) -> float:
    """Returns Prometheus' quantile over the buckets of the TTFT, in seconds; 0 without values."""
    counts, rank, below = (
        Counter(bisect_left(FIRST_TOKEN, it) for it in values),
        share * len(values),
        0,
    )
    for place, bound in enumerate(FIRST_TOKEN):
        if (inside := counts[place]) and below + inside >= rank:
            low = FIRST_TOKEN[place - 1] if place else 0.0
            return low + (bound - low) * (rank - below) / inside
        below += inside
    return FIRST_TOKEN[-1] if values else 0.0


def replicas_for(
    current: int, values: Sequence[float], target: float, tolerance: float = 0.1
) -> int:
    """Returns the replicas that the HPA wants when pods with metrics have `values`, with mean
    `target`.

    Pods without metrics, such as loading ones, count as idle before a scale up, and as on target
    before a scale down. Neither may reverse the direction. Without any values the number stays.
    """
    if not values:
        return current
    ratio = usage = _ratio(values, target)
    if missing := current - len(values):
        usage = _ratio([*values, *[target if ratio < 1 else 0.0] * missing], target)
    if 1 - tolerance <= usage <= 1 + tolerance or ratio < 1 < usage or usage < 1 < ratio:
        return current
    return math.ceil(usage * current)


def _ratio(values: Sequence[float], target: float) -> float:
    return sum(int(value * MILLI) for value in values) // len(values) / round(target * MILLI)


Rate = tuple[int, bool, float]
"""A change that is allowed within seconds:

pods or, if true, a percentage of the pods at their beginning.
"""
LONGEST_PERIOD_S, LONGEST_WINDOW_S = 1800, 3600
"""Longest period of a rate, and longest stabilization window, of Kubernetes."""
Change = tuple[float, int]
"""Time in seconds, and pods that were added (or, below 0, removed) then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalPodAutoscaler:
    """The HPA's formula and behavior, with the defaults of Kubernetes."""

    least: int
    most: int
    metric: str
    target: float
    tolerance: float = 0.1
    up: Sequence[Rate] = ((100, True, 15.0), (4, False, 15.0))
    down: Sequence[Rate] = ((100, True, 15.0),)
    select_up: str = "max"
    select_down: str = "max"
    window_up: float = 0.0
    """Stabilization window, in seconds."""
    window_down: float = 300.0

    def start(self, pods: int) -> Decide:
        recommended, changes = deque[Change]([(0.0, pods)]), deque[Change]()

        def decide(look: Look) -> int:
            now_s, current = look.at_s, look.pods
            wanted = min(max(current, self.least), self.most)
            if wanted == current:
                values = [sample[self.metric] for sample in look.samples]
                raw = replicas_for(current, values, self.target, self.tolerance)
                wanted = self.limited(
                    now_s, current, self._stable(now_s, current, raw, recommended), changes
                )
                recommended.append((now_s, raw))
            changes.append((now_s, wanted - current))
            for its in (recommended, changes):
                while its and its[0][0] <= now_s - LONGEST_WINDOW_S:
                    its.popleft()
            return wanted

        return decide

    def _stable(self, now_s: float, current: int, raw: int, recommended: Iterable[Change]) -> int:
        """Returns the number nearest to `current` among those wanted within the windows."""
        up_s, down_s = now_s - self.window_up, now_s - self.window_down
        up = min([raw, *(pods for at_s, pods in recommended if at_s > up_s)])
        down = max([raw, *(pods for at_s, pods in recommended if at_s > down_s)])
        return min(max(current, up), down)

    def limited(self, now_s: float, current: int, wanted: int, changes: Iterable[Change]) -> int:
        """Returns the number of pods, between `current` and `wanted`, that rates and bounds allow."""
        up = wanted > current
        sign, rates, select = (
            (1, self.up, self.select_up) if up else (-1, self.down, self.select_down)
        )
        if select == "disabled":
            return current
        limits = []
        for value, is_percent, period_s in rates:
            begun = current - sum(change for at_s, change in changes if at_s > now_s - period_s)
            share = begun * (1 + sign * value / 100)
            limits.append(
                (math.ceil(share) if up else int(share)) if is_percent else begun + sign * value
            )
        limit = max(limits) if up == (select == "max") else min(limits)
        if up:
            return min(wanted, max(limit, current), self.most)
        return max(wanted, min(limit, current), self.least)


def scheduled(steps: Sequence[tuple[float, int]], pods: int) -> Decide:
    """Returns decisions by time:

    each number of pods holds from its seconds after the first request on.
    """
    return lambda look: [pods for at_s, pods in steps if at_s <= look.at_s][-1]


Policy = ScalingPolicy | HorizontalPodAutoscaler


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """A policy and the times of a cluster around it, in seconds; `written` is the policy's text."""

    policy: Policy
    cold_start_s: float
    every_s: float = 15.0
    """Time between two looks."""
    scrape_s: float = 15.0
    """Time between two scrapes of a pod."""
    written: str = ""


def read_policy(text: str, plugged: Mapping[str, AutoscalerStart]) -> Policy:
    """Reads `hpa:metric=waiting,target=4,min=1,max=16`, `schedule:0s=2,60s=8` or
    `NAME:min=1,max=16`.

    `plugged` are policies of plugins by name. Raises ValueError or ArgumentTypeError with the rule.
    """
    name, _, rest = text.partition(":")
    given = dict[str, str]()
    for part in rest.split(","):
        key, mark, value = part.strip().partition("=")
        if not mark or key in given:
            raise ValueError(f"{name}: {part[:40]!r} must be NAME=VALUE, each name once")
        given[key] = value
    if name == "schedule":
        return _schedule(given)
    if name not in (*BUILT_IN, *plugged):
        raise ValueError(f"{name[:40]!r} must be one of {', '.join((*BUILT_IN, *plugged))}")
    try:
        its = vars(_values(name).parse_args([f"--{key}={value}" for key, value in given.items()]))
    except UsageError as error:
        raise ValueError(f"{name}: {re.sub('argument --|--', '', str(error))}") from None
    if its["least"] > its["most"]:
        raise ValueError(f"{name}: min {its['least']} must not exceed max {its['most']}")
    return (
        HorizontalPodAutoscaler(**its)
        if name == "hpa"
        else ScalingPolicy(**its, start=plugged[name])
    )


def _values(name: str) -> FlagParser:
    """Makes the parser of a policy's values, as if each were a flag."""
    flags = FlagParser(add_help=False, allow_abbrev=False, argument_default=SUPPRESS)
    add = flags.add_argument
    add("--min", dest="least", required=True, type=PODS)
    add("--max", dest="most", required=True, type=PODS)
    if name == "hpa":
        add("--metric", required=True, choices=METRICS)
        add("--target", required=True, type=number_of(1 / MILLI, 1e12, zero=True))
        add("--tolerance", type=number_of(0, 1e12, zero=True))
        for way in ("up", "down"):
            add(f"--{way}", type=as_argument(_rates))
            add(f"--select-{way}", choices=("max", "min", "disabled"))
            add(f"--window-{way}", type=duration_of(LONGEST_WINDOW_S))
    return flags


def _rates(text: str) -> list[Rate]:
    """Reads rates such as `100%/15s+4/15s`. Raises ValueError with the rule."""
    found = [re.fullmatch(r"([1-9]\d{0,4})(%?)/(\w+)", part, re.ASCII) for part in text.split("+")]
    rates = [(int(it[1]), bool(it[2]), parse_duration(it[3])) for it in found if it]
    if not all(found) or not all(0 < period_s <= LONGEST_PERIOD_S for *_, period_s in rates):
        raise ValueError("must be rates such as 100%/15s+4/15s, in periods of 30m at most")
    return rates


def _schedule(given: Mapping[str, str]) -> ScalingPolicy:
    steps = sorted((SECONDS(at), PODS(pods)) for at, pods in given.items())
    if steps[0][0] or len(dict(steps)) < len(steps):
        raise ValueError("schedule: it must begin with 0s=PODS, and have each moment once")
    counts = [pods for _, pods in steps]
    return ScalingPolicy(min(counts), max(counts), partial(scheduled, steps))


def read_cold_start(text: str, weight_bytes: float) -> float:
    """Reads durations and readings of weights with `+` between: `90s`, `40s+2GB/s`,
    `40s+30GB@2GB/s`.

    Weights without a size have `weight_bytes`. Returns seconds; raises ValueError or
    ArgumentTypeError.
    """
    total_s = 0.0
    for part in text.split("+"):
        size, _, bandwidth = part.rpartition("@")
        if not bandwidth.endswith("/s"):
            total_s += SECONDS(part)
            continue
        held = size_of(size) if size else weight_bytes
        if not held:
            raise ValueError(f"{part!r} needs the size of the weights, too, such as 30GB@2GB/s")
        total_s += held / size_of(bandwidth.removesuffix("/s"))
    if total_s < 0:
        raise ValueError("must not be negative")
    return total_s


JOIN, SCRAPE, LOOK = range(3)
"""Kinds of events, in their order at one moment."""


@dataclass(slots=True)
class Life:
    """Moments of a pod, in seconds:

    start of loading, readiness, last moment to get requests, end.
    """

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
        """Returns the lives that began before `end_s`; `idle_s` has the end of each pod's last
        request.
        """
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
            # As a ReplicaSet: pods that are not ready go first, then those that were ready for less
            # time.
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


def pods_over(
    lives: Sequence[Life], begin_s: float, width_s: float, count: int
) -> Iterator[list[float]]:
    """Yields the mean pods that load, are ready and drain in each interval of `width_s` seconds."""
    phases = (
        [(it.begun_s, min(it.ready_s, it.gone_s)) for it in lives],
        [(it.ready_s, min(it.drain_s, it.gone_s)) for it in lives],
        [(max(it.drain_s, it.ready_s), it.gone_s) for it in lives],
    )
    for place in range(count):
        low_s, high_s = begin_s + place * width_s, begin_s + (place + 1) * width_s
        yield [
            sum(max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in spans)
            / width_s
            for spans in phases
        ]


def pod_seconds(lives: Iterable[Life]) -> float:
    """Returns the seconds of all pods, from the start of their loading until they are gone."""
    return sum(it.gone_s - it.begun_s for it in lives)
