"""The way in: admission, and the sequences of each request."""

from __future__ import annotations

from collections.abc import Callable, Container
from collections.abc import Sequence as Listed
from functools import cached_property
from itertools import count

from app.clock.clock import Clock
from app.engine.executor import NO_ADAPTERS, SlotExecutor
from app.engine.outputs import Event
from app.engine.request import Generation
from app.engine.runner import Performer
from app.engine.sequence import Sequence
from app.engine.waiting import ANY_TIME, Turn
from app.http.errors import retryable, too_many, unavailable
from app.lora.slots import LoRASlots
from app.metrics.recorder import Recorder


class SequenceGroup:
    """The sequences of one request (n choices of each prompt), admitted and ended together.

    It forgets each sequence as it ends, so that no cycle is left for the garbage collector.
    """

    def __init__(self, recorder: Recorder, over: Callable[[], None]) -> None:
        self._unfinished: dict[int, Sequence] = {}
        self._recorder = recorder
        self._over = over
        self._lengths: dict[int, list[int]] = {}

    def add(self, sequence: Sequence) -> None:
        """Take `sequence` in, before it asks for a place."""
        self._unfinished[sequence.generation.index] = sequence

    def submit(self, executor: SlotExecutor) -> None:
        """Let every sequence ask for a place, in order."""
        for sequence in list(self._unfinished.values()):
            sequence.submit(executor)

    def abort(self) -> None:
        """End what still runs or waits; the last first, so that none gets a place on the way out."""
        for sequence in reversed(list(self._unfinished.values())):
            sequence.abort()

    def interrupt(self) -> None:
        """As `abort`, but for a client that is there: each choice ends with `abort`."""
        for sequence in reversed(list(self._unfinished.values())):
            sequence.interrupt()

    def ended(self, sequence: Sequence) -> None:
        """One sequence is over; the last choice of a prompt settles what is counted per prompt."""
        del self._unfinished[sequence.generation.index]
        if not self._unfinished:
            self._over()
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
    waiting and running together (503; vLLM's `max-num-queued-reqs`). With `refuses_full` what does not fit
    into the KV cache now is refused (503) instead of made to wait.
    """

    def __init__(
        self,
        performer: Performer,
        recorder: Recorder,
        clock: Clock,
        places: int,
        max_waiting: int,
        max_unfinished: int | None = None,
        residents: LoRASlots = NO_ADAPTERS,
        by_priority: bool = False,
        refuses_full: bool = False,
    ) -> None:
        self.recorder = recorder
        self.clock = clock
        self.draining = False
        self._performer = performer
        self._places = places
        self._max_waiting = max_waiting
        self._max_unfinished = max_unfinished
        self._residents, self._by_priority = residents, by_priority
        self._refuses_full = refuses_full
        self._groups: dict[int, tuple[str, SequenceGroup]] = {}
        """Request id and sequences of every request that is not over."""
        self._numbers = count()

    @cached_property
    def executor(self) -> SlotExecutor:
        """Made by the first request, so in the worker and after the fork."""
        return SlotExecutor(self._places, self._residents, self._by_priority)

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

    def preflight(self, wanted: int) -> None:
        """Raise ApiError 503 when the server takes no requests, or not `wanted` sequences more."""
        if self.draining:
            raise unavailable("The server is shutting down and takes no new requests.")
        if self._max_unfinished is not None and self.unfinished + wanted > self._max_unfinished:
            self.recorder.rejected("max_num_queued_reqs")
            raise unavailable(
                f"The server holds {self.unfinished} of at most {self._max_unfinished} requests; retry later."
            )

    def admit(self, wanted: int, turn: Turn = ANY_TIME) -> None:
        """Raise ApiError 503 or 429 when `wanted` more sequences would exceed a limit.

        All or nothing: a request of several choices is never admitted in part.
        """
        self.preflight(wanted)
        waiting = self.executor.waiting
        if wanted > self.executor.free(turn) + self._max_waiting - waiting:
            raise too_many(f"The waiting requests queue is full: {waiting} wait already; retry later.")

    def submit(self, generations: Listed[Generation], emit: Callable[[Event], None]) -> SequenceGroup:
        """Play `generations`; their events go to `emit`, some of them perhaps before this returns.

        Raises ApiError as `admit` does.
        """
        prepared = [(generation, self._performer.prepare(generation)) for generation in generations]
        if self._refuses_full and not all(performance.fits() for _, performance in prepared):
            raise retryable("The KV cache has too few free blocks for the prompt; retry later.")
        if generations:  # nothing may wait between this and the end, or others would take the places
            self.admit(len(generations), Turn(generations[0].adapter))
        number = next(self._numbers)
        group = SequenceGroup(self.recorder, lambda: self._forget(number))
        if generations:
            self._groups[number] = (generations[0].request_id, group)
        for generation, performance in prepared:
            watches = [watch for observer in generation.observers if (watch := observer(generation))]
            group.add(
                Sequence(generation, performance, self.recorder, self.clock, emit, group.ended, watches)
            )
        group.submit(self.executor)
        return group

    def _forget(self, number: int) -> None:
        del self._groups[number]

    def interrupt(self, request_ids: Container[str] | None = None) -> int:
        """End the requests of these ids, or all; their clients are told `abort`. How many there were."""
        found = [group for name, group in self._groups.values() if request_ids is None or name in request_ids]
        for group in found:
            group.interrupt()
        return len(found)


Handle = SequenceGroup
EngineClient = Service
