"""The way in: admission, and the sequences of each request."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from functools import cached_property

from app.events import Event
from app.generation import Generation
from app.metrics.recorder import Recorder
from app.protocol.errors import too_many, unavailable
from app.serving.executor import PlaceExecutor
from app.serving.performer import Performer
from app.serving.sequence import Sequence
from app.simulation.clock import Clock


class SequenceGroup:
    """The sequences of one request (n choices of each prompt), admitted and ended together.

    It forgets each sequence as it ends, so that no cycle is left for the garbage collector.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._unfinished: dict[int, Sequence] = {}
        self._recorder = recorder
        self._lengths: dict[int, list[int]] = {}

    def add(self, sequence: Sequence) -> None:
        """Take `sequence` in, before it asks for a place."""
        self._unfinished[sequence.generation.index] = sequence

    def submit(self, executor: PlaceExecutor) -> None:
        """Let every sequence ask for a place, in order."""
        for sequence in list(self._unfinished.values()):
            sequence.submit(executor)

    def abort(self) -> None:
        """End what still runs or waits; the last first, so that none gets a place on the way out."""
        for sequence in reversed(list(self._unfinished.values())):
            sequence.abort()

    def ended(self, sequence: Sequence) -> None:
        """One sequence is over; the last choice of a prompt settles what is counted per prompt."""
        del self._unfinished[sequence.generation.index]
        n = sequence.generation.n
        if n == 1:
            self._recorder.completed(1, sequence.tokens)
            return
        lengths = self._lengths.setdefault(sequence.generation.index // n, [])
        lengths.append(sequence.tokens)
        if len(lengths) == n:
            self._recorder.completed(n, max(lengths))


class Service:
    """Takes generations in, up to its limits, and plays each when one of `places` is free.

    `max_waiting` bounds the waiting list (429 beyond it); `max_unfinished`, if given, bounds
    waiting and running together (503; vLLM's `max-num-queued-reqs`).
    """

    def __init__(
        self,
        performer: Performer,
        recorder: Recorder,
        clock: Clock,
        places: int,
        max_waiting: int,
        max_unfinished: int | None = None,
    ) -> None:
        self.recorder = recorder
        self.clock = clock
        self.draining = False
        self._performer = performer
        self._places = places
        self._max_waiting = max_waiting
        self._max_unfinished = max_unfinished

    @cached_property
    def executor(self) -> PlaceExecutor:
        """Made by the first request, so in the worker and after the fork."""
        return PlaceExecutor(self._places)

    @property
    def unfinished(self) -> int:
        """Sequences waiting or running."""
        return self.executor.running + self.executor.waiting

    @property
    def running(self) -> int:
        """Sequences that hold a place."""
        return self.executor.running

    def drain(self) -> None:
        """Admit nothing more; what was admitted goes on to its end."""
        self.draining = True

    def preflight(self, count: int) -> None:
        """Raise ApiError 503 when the server takes no requests, or not `count` sequences more."""
        if self.draining:
            raise unavailable("The server is shutting down and takes no new requests.")
        if self._max_unfinished is not None and self.unfinished + count > self._max_unfinished:
            self.recorder.rejected("max_num_queued_reqs")
            raise unavailable(
                f"The server holds {self.unfinished} of at most {self._max_unfinished} requests; retry later."
            )

    def admit(self, count: int) -> None:
        """Raise ApiError 503 or 429 when `count` more sequences would exceed a limit.

        All or nothing: a request of several choices is never admitted in part.
        """
        self.preflight(count)
        waiting = self.executor.waiting
        if count > self.executor.free + self._max_waiting - waiting:
            raise too_many(f"The waiting requests queue is full: {waiting} wait already; retry later.")

    def submit(self, generations: Listed[Generation], emit: Callable[[Event], None]) -> SequenceGroup:
        """Play `generations`; their events go to `emit`, some of them perhaps before this returns.

        Raises ApiError as `admit` does.
        """
        self.admit(len(generations))
        group = SequenceGroup(self.recorder)
        for generation in generations:
            performance = self._performer.prepare(generation)
            group.add(Sequence(generation, performance, self.recorder, self.clock, emit, group.ended))
        group.submit(self.executor)
        return group
