"""What was submitted to an engine together: the choices of one request."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from app.clock.pause import Slices

if TYPE_CHECKING:
    from app.engine.sequence import Sequence as EngineSequence

INTERRUPT_STEPS = 4
"""Work of ending one choice, in steps of `Slices`."""
STARTED_AT_ONCE = 128
"""Most choices of a request that start in the turn in which it came; keeps other streams on time."""


class Submission:
    """The `Handle` of the choices of one request: admitted together, aborted together.

    The last choice that ends releases all of them, so no cycle is left for the garbage collector.
    """

    __slots__ = ("_active", "_future", "_lengths", "_sequences", "_unfinished")

    def __init__(self, active: dict[Submission, None]) -> None:
        """`active` holds the unfinished submissions of the engine, in order of arrival."""
        self._active = active
        self._sequences: Sequence[EngineSequence] = ()
        self._unfinished = 0
        self._lengths: dict[int, list[int]] | None = None
        """Tokens of the finished choices, by prompt."""
        self._future: Future[None] | None = None

    @property
    def choices(self) -> Sequence[EngineSequence]:
        """All choices; none when the last one is over."""
        return self._sequences

    @property
    def future(self) -> Future[None]:
        """See `Handle.future`. Made when it is first read: a stream never needs one, and it takes 1.7 KB."""
        if self._future is None:
            self._future = Future()
            self._future.set_running_or_notify_cancel()
            if not self._unfinished:
                self._future.set_result(None)
        return self._future

    def begin(self, sequences: Sequence[EngineSequence]) -> None:
        """Submits every sequence, in order; of many, most start in later turns of the event loop."""
        self._sequences = sequences
        self._unfinished = len(sequences)
        self._active[self] = None
        for number, sequence in enumerate(sequences):
            if not sequence.over:
                sequence.enter(soon=number >= STARTED_AT_ONCE)

    def abort(self) -> None:
        """See `Handle.abort`. Ends the last choice first, so that none gets a slot on the way out."""
        for sequence in reversed(self._sequences):
            sequence.abort()

    def interrupt(self, request_ids: Container[str] | None, slices: Slices, counted: bool) -> int:
        """Ends each choice with one of these request ids, or all, with the reason `abort`.

        Returns the number of choices, and one more for each prompt with several choices, as vLLM counts them.
        """
        found = [
            it
            for it in reversed(self._sequences)
            if not it.over and (request_ids is None or it.request.request_id in request_ids)
        ]
        parents = {it.request.index // it.request.n for it in found if it.request.n > 1}
        for sequence in found:
            sequence.interrupt(counted)
            slices.spend(INTERRUPT_STEPS)
        return len(found) + len(parents)

    def count(self, sequence: EngineSequence) -> tuple[int, int]:
        """Returns `choices` and `longest` of `FinishedSequence`: 0, 0 before the prompt's last choice."""
        n, tokens = sequence.request.n, sequence.tokens
        if n == 1:
            return 1, tokens
        if self._lengths is None:
            self._lengths = {}
        lengths = self._lengths.setdefault(sequence.request.index // n, [])
        lengths.append(tokens)
        return (n, max(lengths)) if len(lengths) == n else (0, 0)

    def end_one(self) -> None:
        """Notes that one choice is over and has emitted its last output; the last one sets the future."""
        self._unfinished -= 1
        if not self._unfinished:
            self._sequences = ()
            del self._active[self]
            if self._future is not None:
                self._future.set_result(None)


def interrupt(active: Iterable[Submission], request_ids: Container[str] | None, counted: bool) -> int:
    """Interrupts the choices of `active` with these ids, or all; returns how many. Pauses between many."""
    slices = Slices()
    return sum([submission.interrupt(request_ids, slices, counted) for submission in list(active)])
