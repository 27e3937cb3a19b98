"""A load on an engine that runs in this process, and the same load on the virtual clock.

Both tell the same: when each request was sent and answered, and what every step held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from app.core.engine.batch import Batch
from app.core.engine.profile import EngineLimits, Profile
from workbench.load.loads import LoadTrace
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.pod import Pod
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationPlan, simulate

TURNAROUND_S = 100e-6
"""From the end of a request until the client sends the next one:

the step after it has been made by then.
"""


class RecordedStep(Struct, frozen=True):
    """What a step held, as `Batch` has it, and how long it took: from the end of the one before, or
    from the request that ended a pause, until its tokens were there.
    """

    tokens: int
    sequences: int
    context: int
    attention: float
    prefills: int
    seconds: float

    @property
    def held(self) -> tuple[float, ...]:
        return self.tokens, self.sequences, self.context, self.attention, self.prefills


class Played(Struct, frozen=True):
    """What became of a load."""

    recording: MeasuredRun
    steps: list[RecordedStep]


class Token(NamedTuple):
    """A token of the reply to the request of that number."""

    number: int
    last: bool


class ServingEngine(Protocol):
    """An engine as it is played: one step after another, in the caller's thread."""

    limits: EngineLimits

    def add(self, number: int, input_tokens: int, output_tokens: int) -> None:
        """Take in a request with a prompt of so many tokens, to be answered with exactly so many."""

    def step(self) -> tuple[Batch[Any], Sequence[Token]]:
        """Compute a step:

        what it held, and whose tokens are there. There is something to compute.
        """

    def reset(self) -> None:
        """Forget what is cached of requests that are over."""


class Clock(NamedTuple):
    """Seconds, and how to let some pass."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


def play_on(engine: ServingEngine, load: LoadTrace, in_flight: int | None, clock: Clock) -> Played:
    """Play `load`, with at most `in_flight` requests at a time: whoever waits is sent when another
    one ends.

    A step begins when the one before has ended, and has who was sent by then. What is done between
    two steps is part of the second.
    """
    engine.reset()
    performance = _Performance(engine, load, in_flight, clock)
    performance.run()
    return Played(performance.recording, performance.steps)


def play_offline(profile: Profile, load: LoadTrace, in_flight: int | None) -> Played:
    """The same on the virtual clock, with the engine of `profile`."""
    noted: list[RecordedStep] = []

    def watch(pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        noted.append(_noted(batch, end_s - start_s))

    plan = SimulationPlan(profile=profile, in_flight=in_flight, turnaround_s=TURNAROUND_S)
    outcome = simulate(load, plan, watch=watch)
    recording = _blank("simulated", load)
    recording.send_s, recording.first_s = list(outcome.send_s), list(outcome.first_s)
    recording.last_s = list(outcome.last_s)
    return Played(recording, noted)


class _Performance:
    """A load on its way through an engine."""

    def __init__(
        self, engine: ServingEngine, load: LoadTrace, in_flight: int | None, clock: Clock
    ) -> None:
        self.recording = _blank("real", load)
        self.steps: list[RecordedStep] = []
        self._engine, self._load, self._clock = engine, load, clock
        self._begun_s = 0.0
        self._next = 0
        """The request that is sent next."""
        self._under_way = 0
        self._places = deque([-inf] * (len(load) if in_flight is None else in_flight))
        """When each place that is free, or soon will be, is so; in order."""
        self._ended_s = -inf
        """The last step."""
        self._woken_s = -inf
        """When the last request came that found nothing to do."""

    def run(self) -> None:
        self._begun_s = self._clock.now()
        while True:
            self._send(self._ended_s if self._under_way else self._passed_s())
            if self._under_way:
                self._step()
            elif self._next < len(self._load):
                self._clock.sleep(max(0.0, self._next_s() - self._passed_s()))
            else:
                return

    def _passed_s(self) -> float:
        return self._clock.now() - self._begun_s

    def _next_s(self) -> float:
        """When the next request is sent."""
        if self._next == len(self._load) or not self._places:
            return inf
        return max(self._load.arrival_s[self._next], self._places[0])

    def _send(self, now_s: float) -> None:
        """Send what is to be sent by then."""
        while (send_s := self._next_s()) <= now_s:
            number = self._next
            self._places.popleft()
            self._engine.add(
                number, self._load.input_tokens[number], self._load.output_tokens[number]
            )
            self.recording.send_s[number] = send_s
            if not self._under_way:
                self._woken_s = send_s
            self._next += 1
            self._under_way += 1

    def _step(self) -> None:
        batch, tokens = self._engine.step()
        end_s, recording = self._passed_s(), self.recording
        start_s = max(self._ended_s, self._woken_s)
        self.steps.append(_noted(batch, end_s - start_s))
        self._ended_s = end_s
        for number, last in tokens:
            if recording.first_s[number] < 0:
                recording.first_s[number] = end_s
            if last:
                recording.last_s[number] = end_s
                self._places.append(end_s + TURNAROUND_S)
                self._under_way -= 1


def _noted(batch: Batch[Any], seconds: float) -> RecordedStep:
    return RecordedStep(
        batch.tokens, batch.sequences, batch.context, batch.attention, batch.prefills, seconds
    )


def _blank(name: str, load: LoadTrace) -> MeasuredRun:
    """Of a load of which nothing has become yet."""
    return MeasuredRun(
        name=name,
        arrival_s=list(load.arrival_s),
        send_s=[-1.0] * len(load),
        first_s=[-1.0] * len(load),
        last_s=[-1.0] * len(load),
        input_tokens=list(load.input_tokens),
        output_tokens=list(load.output_tokens),
    )
