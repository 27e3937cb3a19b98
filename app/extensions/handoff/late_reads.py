"""Reads that find their source first, and wait for the prefill: start with `LateReads`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeAlias

from app.extensions.handoff.messages import PENDING, Answer, Read, Source
from app.extensions.handoff.reads import NO_SOURCE, Finish, Reads, RemoteRead

TOO_LATE = "the prefill takes too long"

Found: TypeAlias = Callable[[Source | None, str], None]
"""Takes the source of a read, or None with the problem."""
Locate: TypeAlias = Callable[[Found], None]
"""Finds the source of a read, now or later."""


class LateRead(RemoteRead):
    """A read that knows how to find its source."""

    __slots__ = ("locate", "transfer_s")

    def __init__(self, locate: Locate, number: str, since_s: float) -> None:
        super().__init__(None, number, since_s)
        self.locate = locate
        self.transfer_s = 0.0
        """Duration of the transfer, which begins when the prefill has ended."""


class LateReads(Reads):
    """The reads of an engine whose prefills may end after the arrival of the decodes."""

    @cached_property
    def _patient(self) -> set[int]:
        """Numbers of the questions with the answer `PENDING`."""
        return set()

    def expect_at(self, locate: Locate, lease_source: Source | None = None) -> LateRead:
        """Returns the read of a request that has arrived.

        Extends the lease of `lease_source` from now on.
        """
        read = self._new_read(locate)
        if lease_source is not None:
            self._watch(read, lease_source)
        return read

    def _new_read(self, locate: Locate) -> LateRead:
        return LateRead(locate, self._new_number(), self._now())

    def start(self, read: RemoteRead, transfer_s: float, finish: Finish) -> None:
        """Finds the source, waits for the prefill, and calls `finish` after the transfer."""
        assert isinstance(read, LateRead)
        read.finish = finish
        read.transfer_s = transfer_s
        read.locate(partial(self._take_source, read))

    def _take_source(self, read: LateRead, source: Source | None, problem: str) -> None:
        if read.is_over:
            if source is not None:
                self._release(read, source)
            return
        if source is None:
            self._wheel.call_soon(partial(self._fail, read, problem or NO_SOURCE))
            return
        read.source = source
        self._request(read)

    def _request(self, read: RemoteRead) -> None:
        source = read.source
        if not read.is_over and source is not None:
            self._ask(source, Read(source.request_id, read.number), partial(self._announced, read))

    def _announced(self, read: RemoteRead, problem: str) -> None:
        """Starts the transfer when the prefill has ended; asks again while it runs.

        The repeated question notices a prefill pod that has gone, and one that lost the first one.
        """
        assert isinstance(read, LateRead)
        now_s = self._now()
        if problem == PENDING and now_s - read.since_s > self._settings.wait_s:
            problem = TOO_LATE
            if read.source is not None:
                self._release(read, read.source)
        if problem == PENDING:
            self._request(read)
            return
        read.ready_s = now_s + read.transfer_s
        super()._announced(read, problem)

    def answered(self, answer: Answer) -> None:
        """Takes an answer. After `PENDING`, the question waits for one more answer."""
        if answer.problem != PENDING:
            self._patient.discard(answer.number)
            super().answered(answer)
        elif answer.number in self._pending:
            self._patient.add(answer.number)

    def _time_out(self, number: int, source: Source) -> None:
        if number in self._patient:
            self._patient.discard(number)
            super().answered(Answer(number, PENDING))
        else:
            super()._time_out(number, source)
