"""The file of a drill: its load, and the failures of pods in the order of their times.

Start reading at `Drill`; `read_drill` checks a file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from config import ConfigError
from config.durations import format_duration, parse_duration
from config.yaml_file import parse_yaml

Span: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ms|s|m|h))+$",
        max_length=32,
        description="a duration such as 90s or 1m30s",
    ),
]
PodNumber: TypeAlias = Annotated[int, Meta(ge=0)]
MAX_DURATION_S = 24 * 3600.0
MAX_REQUESTS = 100_000


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    """A failure of one pod, which starts at a time after the start of the load."""

    moment: Span = field(name="at")
    """Time after the start of the load."""
    pod: PodNumber
    """Number of the pod, from 0."""

    verb: ClassVar[str] = ""
    stalls_peers: ClassVar[bool] = False
    """True if ranks that wait for this pod get stuck."""

    @property
    def start_s(self) -> float:
        """Start in seconds."""
        return parse_duration(self.moment)

    @property
    def length_s(self) -> float:
        """Duration in seconds; 0 for a failure without an end."""
        return 0.0

    @property
    def end_s(self) -> float:
        """End in seconds."""
        return self.start_s + self.length_s

    @property
    def label(self) -> str:
        """Name in the report, such as "kill 1"."""
        return f"{self.verb} {self.pod}"

    def spans(self) -> Iterator[tuple[str, float]]:
        """Yields the fields that must last for at least one request, and their seconds."""
        return iter(())


class LastingFailure(Failure, frozen=True, kw_only=True):
    """A failure that ends by itself."""

    span: Span = field(name="for")
    """Duration of the failure."""

    @property
    def length_s(self) -> float:
        """Duration in seconds."""
        return parse_duration(self.span)

    def spans(self) -> Iterator[tuple[str, float]]:
        """Yields the duration."""
        yield "for", self.length_s


class Kill(Failure, frozen=True, tag="kill"):
    """Ends all processes of the pod with SIGKILL. The pod stays down until a restart."""

    verb = "kill"
    stalls_peers = True


class Restart(Failure, frozen=True, kw_only=True, tag="restart"):
    """Kills the pod if it runs, and starts it again with an empty cache."""

    start_up: Span = field(name="start-up")
    """Time until the new pod accepts connections."""

    verb = "restart"
    stalls_peers = True

    @property
    def length_s(self) -> float:
        """Time of the start in seconds."""
        return parse_duration(self.start_up)

    def spans(self) -> Iterator[tuple[str, float]]:
        """Yields the time of the start."""
        yield "start-up", self.length_s


class Stop(LastingFailure, frozen=True, tag="stop"):
    """Stops all processes of the pod with SIGSTOP, and continues them at the end."""

    verb = "stop"
    stalls_peers = True


class Stuck(LastingFailure, frozen=True, tag="stuck"):
    """The engine makes no progress, while /health is answered with 200."""

    verb = "stuck"
    stalls_peers = True


class Partition(LastingFailure, frozen=True, tag="partition"):
    """No bytes pass between router and pod. The pod continues, and connections stay open."""

    verb = "partition"


class Slow(LastingFailure, frozen=True, kw_only=True, tag="slow"):
    """The first token of each new request is late."""

    delay: Span
    """Additional time to the first token."""

    verb = "slow"

    @property
    def delay_s(self) -> float:
        """Additional time in seconds."""
        return parse_duration(self.delay)


class Flap(Failure, frozen=True, kw_only=True, tag="flap"):
    """The pod refuses connections and breaks open ones, and accepts again, several times."""

    times: Annotated[int, Meta(ge=1, le=1000)]
    """Number of outages."""
    down: Span
    """Duration of an outage."""
    up: Span
    """Time between two outages."""

    verb = "flap"

    @property
    def down_s(self) -> float:
        """Duration of an outage in seconds."""
        return parse_duration(self.down)

    @property
    def up_s(self) -> float:
        """Time between two outages in seconds."""
        return parse_duration(self.up)

    @property
    def length_s(self) -> float:
        """Time from the first outage to the end of the last one."""
        return self.times * self.down_s + (self.times - 1) * self.up_s

    def spans(self) -> Iterator[tuple[str, float]]:
        """Yields both durations."""
        yield "down", self.down_s
        yield "up", self.up_s


AnyFailure: TypeAlias = Kill | Restart | Stop | Stuck | Partition | Slow | Flap


class Drill(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="kebab",
):
    """A load, and the failures that pods have meanwhile."""

    duration: Span
    """Duration of the load."""
    pods: Annotated[int, Meta(ge=1, le=16)] = 4
    """Number of pods."""
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1
    """Seed of prompts, pods and routing."""
    rate: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """Requests per second, at equal intervals."""
    slow_after: Span = "2s"
    """An answer that takes longer is slow."""
    timeout: Span = "10s"
    """A request without a whole answer after this time is lost."""
    groups: Annotated[int, Meta(ge=1, le=1000)] = 8
    """System prompts that requests share."""
    prefix_tokens: Annotated[int, Meta(ge=1, le=32_000)] = 500
    """Tokens of a system prompt."""
    reply_tokens: Annotated[int, Meta(ge=1, le=10_000)] = 80
    """Tokens of a reply."""
    expert_parallel: tuple[tuple[PodNumber, ...], ...] = ()
    """Groups of pods that wait for one another in each step, as ranks with expert parallelism."""
    failures: tuple[AnyFailure, ...] = ()
    """Failures in the order of their times."""

    @property
    def duration_s(self) -> float:
        """Duration of the load in seconds."""
        return parse_duration(self.duration)

    @property
    def slow_after_s(self) -> float:
        """Limit of an answer in seconds."""
        return parse_duration(self.slow_after)

    @property
    def timeout_s(self) -> float:
        """Time in seconds after which a request is lost."""
        return parse_duration(self.timeout)

    @property
    def interval_s(self) -> float:
        """Seconds between two requests."""
        return 1 / self.rate

    @property
    def requests(self) -> int:
        """Number of requests."""
        return max(1, round(self.duration_s * self.rate))

    def peers(self, pod: int) -> tuple[int, ...]:
        """Returns the pods that wait for a pod."""
        for group in self.expert_parallel:
            if pod in group:
                return tuple(peer for peer in group if peer != pod)
        return ()

    def between_requests(self, time_s: float) -> float:
        """Returns the moment halfway between the request at a time and the next one.

        Failures start and end there, so that a small delay does not change which requests they
        meet.
        """
        # A tolerance for binary fractions: 0.3 s is the third request at 10 per second.
        number = int(time_s * self.rate + 1e-6)
        return (number + 0.5) * self.interval_s


class DrillError(ConfigError):
    """A drill that cannot be played."""


def read_drill(path: Path) -> Drill:
    """Reads a YAML file.

    Raises:
        ConfigError: The file cannot be read, or is not a valid drill; the message is one line.
    """
    document = parse_yaml(str(path))
    try:
        drill = msgspec.convert(document, Drill)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        reason = " ".join(str(error).split())
        raise DrillError(f"drill {path}: {reason}") from None
    for flaw in _flaws(drill):
        raise DrillError(f"drill {path}: {flaw}")
    return drill


def drill_schema() -> dict[str, object]:
    """Returns the JSON schema of a drill."""
    return msgspec.json.schema(Drill)


def _flaws(drill: Drill) -> Iterator[str]:
    """Yields what is wrong with a drill, the most basic first."""
    if not drill.interval_s <= drill.duration_s <= MAX_DURATION_S:
        yield (
            f"duration {drill.duration} must be at least {format_duration(drill.interval_s)}"
            " (one request), and at most 24h"
        )
    if drill.requests > MAX_REQUESTS:
        yield f"{drill.requests:,} requests are too many: at most {MAX_REQUESTS:,}"
    if drill.timeout_s <= drill.slow_after_s:
        yield f"timeout {drill.timeout} must be longer than slow-after {drill.slow_after}"
    yield from _group_flaws(drill)
    previous_s = 0.0
    for number, failure in enumerate(drill.failures):
        place = f"failures[{number}]"
        if failure.pod >= drill.pods:
            yield f"{place}: unknown pod {failure.pod}; {_pod_names(drill)}"
        if failure.start_s < previous_s:
            yield (
                f"{place}: at {failure.moment} is earlier than the previous failure, at"
                f" {drill.failures[number - 1].moment}"
            )
        previous_s = failure.start_s
        for name, span_s in failure.spans():
            if span_s < drill.interval_s - 1e-9:
                yield (
                    f"{place}: {name} must be at least {format_duration(drill.interval_s)}, the"
                    " time between two requests"
                )
        if failure.end_s >= drill.duration_s:
            yield (
                f"{place}: {failure.label} ends at {format_duration(failure.end_s)}, but the drill"
                f" lasts {drill.duration}"
            )
    yield from _overlaps(drill.failures)


def _pod_names(drill: Drill) -> str:
    if drill.pods == 1:
        return "the drill has only pod 0"
    return f"the drill has pods 0 to {drill.pods - 1}"


def _group_flaws(drill: Drill) -> Iterator[str]:
    seen: set[int] = set()
    for group in drill.expert_parallel:
        if len(group) < 2:
            yield "expert-parallel: a group needs at least two pods"
        for pod in group:
            if pod >= drill.pods:
                yield f"expert-parallel: unknown pod {pod}; {_pod_names(drill)}"
            if pod in seen:
                yield f"expert-parallel: pod {pod} is specified twice"
            seen.add(pod)


def _overlaps(failures: Sequence[AnyFailure]) -> Iterator[str]:
    """Yields failures of a pod that is down, or that has another failure at the time."""
    latest: dict[int, AnyFailure] = {}
    for number, failure in enumerate(failures):
        earlier = latest.get(failure.pod)
        latest[failure.pod] = failure
        if earlier is None:
            continue
        if isinstance(earlier, Kill):
            if not isinstance(failure, Restart):
                yield (
                    f"failures[{number}]: pod {failure.pod} has been down since {earlier.moment}:"
                    " restart it first"
                )
        elif failure.start_s < earlier.end_s or failure.start_s == earlier.start_s:
            yield (
                f"failures[{number}]: {failure.label} at {failure.moment} overlaps {earlier.label},"
                f" which ends at {format_duration(earlier.end_s)}"
            )
        if isinstance(earlier, Kill) and failure.start_s == earlier.start_s:
            yield f"failures[{number}]: pod {failure.pod} has two failures at {failure.moment}"
