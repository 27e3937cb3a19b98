"""The steps of a drill in the order of time, the player that takes them, and the phases."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from workbench.drills.drill_file import (
    AnyFailure,
    Drill,
    Flap,
    Kill,
    Partition,
    Restart,
    Slow,
    Stop,
)


class Pod(Protocol):
    """A pod that fails on demand. Each failure is undone by the method below it."""

    def kill(self) -> None:
        """Ends the processes."""

    def start(self) -> None:
        """Starts new processes, which routers do not reach yet."""

    def admit(self) -> None:
        """Lets routers reach the started pod, once it is healthy."""

    def stop(self) -> None:
        """Stops the processes."""

    def proceed(self) -> None:
        """Continues stopped processes."""

    def close(self) -> None:
        """Refuses and breaks connections."""

    def open(self) -> None:
        """Accepts connections."""

    def cut(self) -> None:
        """Passes no bytes."""

    def heal(self) -> None:
        """Passes bytes."""

    def stick(self, cause: int) -> None:
        """Makes no progress because of pod `cause`."""

    def release(self, cause: int) -> None:
        """Makes progress again, unless another pod prevents it."""

    def slow(self, cause: int, delay_s: float) -> None:
        """Delays new requests because of pod `cause`."""

    def speed_up(self, cause: int) -> None:
        """Delays new requests no longer, unless because of another pod."""


class Step(Struct, frozen=True):
    """A change of one pod at one moment. `time_s` counts from the start of the load."""

    time_s: float
    pod: int
    verb: str
    cause: int
    """The failing pod: `pod` itself, or one that `pod` waits for."""
    delay_s: float = 0.0


class Phase(Struct, frozen=True):
    """A part of a drill between two changes; requests belong to the phase of their due time."""

    name: str
    start_s: float
    end_s: float


class PlayedStep(Struct, frozen=True):
    """A step, with the delay after its time at which it began and ended, in seconds."""

    step: Step
    begin_late_s: float
    end_late_s: float


def steps_of(drill: Drill) -> list[Step]:
    """Returns the steps of all failures, in the order of time."""
    steps: list[Step] = []
    dead: set[int] = set()
    for failure in drill.failures:
        steps += _own_steps(drill, failure, is_dead=failure.pod in dead)
        steps += _peer_steps(drill, failure, is_dead=failure.pod in dead)
        if isinstance(failure, Kill):
            dead.add(failure.pod)
        elif isinstance(failure, Restart):
            dead.discard(failure.pod)
    steps.sort(key=_time_of)
    return steps


def _time_of(step: Step) -> float:
    return step.time_s


def _own_steps(drill: Drill, failure: AnyFailure, *, is_dead: bool) -> list[Step]:
    """Returns the steps of the failing pod."""
    steps: list[Step] = []

    def add(time_s: float, verb: str, delay_s: float = 0.0) -> None:
        moment_s = drill.between_requests(time_s)
        steps.append(Step(moment_s, failure.pod, verb, cause=failure.pod, delay_s=delay_s))

    if isinstance(failure, Flap):
        for outage in range(failure.times):
            down_s = failure.start_s + outage * (failure.down_s + failure.up_s)
            add(down_s, "close")
            add(down_s + failure.down_s, "open")
        return steps
    if isinstance(failure, Kill):
        add(failure.start_s, "kill")
        return steps
    if isinstance(failure, Restart):
        if not is_dead:
            add(failure.start_s, "kill")
        add(failure.start_s, "start")
        add(failure.end_s, "admit")
    elif isinstance(failure, Slow):
        add(failure.start_s, "slow", failure.delay_s)
        add(failure.end_s, "speed_up")
    elif isinstance(failure, Stop):
        add(failure.start_s, "stop")
        add(failure.end_s, "proceed")
    elif isinstance(failure, Partition):
        add(failure.start_s, "cut")
        add(failure.end_s, "heal")
    else:
        add(failure.start_s, "stick")
        add(failure.end_s, "release")
    return steps


def _peer_steps(drill: Drill, failure: AnyFailure, *, is_dead: bool) -> list[Step]:
    """Returns the steps of the pods that wait for the failing one."""
    steps: list[Step] = []
    for peer in drill.peers(failure.pod):
        start_s = drill.between_requests(failure.start_s)
        end_s = drill.between_requests(failure.end_s)
        if isinstance(failure, Slow):
            steps.append(Step(start_s, peer, "slow", cause=failure.pod, delay_s=failure.delay_s))
            steps.append(Step(end_s, peer, "speed_up", failure.pod))
        elif failure.stalls_peers:
            if not is_dead:
                steps.append(Step(start_s, peer, "stick", failure.pod))
            if not isinstance(failure, Kill):
                steps.append(Step(end_s, peer, "release", failure.pod))
    return steps


def phases_of(drill: Drill) -> list[Phase]:
    """Returns the phases of a drill: before, during and after the failures."""
    spans = _failure_spans(drill)
    times_s = {0.0}
    for start_s, end_s, _ in spans:
        times_s |= {start_s, end_s}
    edges_s = sorted(time_s for time_s in times_s if time_s < drill.duration_s)
    phases = []
    for start_s, end_s in zip(edges_s, [*edges_s[1:], drill.duration_s], strict=True):
        labels = [label for first_s, last_s, label in spans if first_s <= start_s < last_s]
        ended = [(last_s, label) for _, last_s, label in spans if last_s <= start_s]
        if labels:
            name = " + ".join(labels)
        elif ended:
            name = f"after {max(ended)[1]}"
        else:
            name = "before"
        phases.append(Phase(name, start_s, end_s))
    return phases


def _failure_spans(drill: Drill) -> list[tuple[float, float, str]]:
    """Returns start, end and label of each failure, as they are played."""
    spans = []
    for number, failure in enumerate(drill.failures):
        end_s = failure.end_s
        if isinstance(failure, Kill):
            end_s = drill.duration_s
            for later in drill.failures[number + 1 :]:
                if later.pod == failure.pod:
                    end_s = later.start_s
                    break
        start_s = drill.between_requests(failure.start_s)
        spans.append((start_s, drill.between_requests(end_s), failure.label))
    return spans


class Player:
    """Takes the steps of a drill at their times."""

    def __init__(
        self,
        steps: Sequence[Step],
        pods: Sequence[Pod],
        *,
        now: Callable[[], float],
        sleep_until: Callable[[float], None],
    ) -> None:
        """`now` returns the seconds since the start; `sleep_until` waits for such a time."""
        self._steps = steps
        self._pods = pods
        self._now = now
        self._sleep_until = sleep_until
        self.played: list[PlayedStep] = []

    def play(self) -> None:
        """Takes all steps.

        Raises:
            FleetError: A pod does not obey, such as a restarted one that does not start.
        """
        for step in self._steps:
            self._sleep_until(step.time_s)
            begin_s = self._now()
            self._take(step)
            self.played.append(PlayedStep(step, begin_s - step.time_s, self._now() - step.time_s))

    def _take(self, step: Step) -> None:
        pod = self._pods[step.pod]
        if step.verb == "slow":
            pod.slow(step.cause, step.delay_s)
        elif step.verb == "speed_up":
            pod.speed_up(step.cause)
        elif step.verb == "stick":
            pod.stick(step.cause)
        elif step.verb == "release":
            pod.release(step.cause)
        else:
            getattr(pod, step.verb)()
