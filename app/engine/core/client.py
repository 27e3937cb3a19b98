"""Base of all engines, for all code above them: admission control and unfinished submissions."""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as Listed

from app.base.clock.pause import Slices
from app.base.metrics.recorder import Recorder
from app.engine.core.errors import Draining, EngineDead, QueueFull, TooManyRequests
from app.engine.core.outputs import Emit
from app.engine.core.request import EngineRequest
from app.engine.core.sequence import Handle, Sequence
from config.settings import Settings


class EngineClient:
    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.recorder = recorder
        self.draining = False
        limits = settings.scheduling
        self._slots, self._max_waiting = limits.max_num_seqs, limits.max_waiting_queue_length
        self._max_unfinished = limits.max_num_queued_reqs
        self._active: dict[Handle, None] = {}
        """Unfinished submissions, in order of arrival."""

    @property
    def healthy(self) -> bool:
        """False while no engine can compute."""
        raise NotImplementedError

    @property
    def running(self) -> int:
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        raise NotImplementedError

    @property
    def _unfinished(self) -> int:
        """Number of running and waiting sequences, in all workers that share the engine."""
        return self.running + self.waiting

    @property
    def _queued(self) -> int:
        """Number of waiting sequences, in all workers that share the engine."""
        return self.waiting

    def _free(self, adapter: str | None) -> int:
        """Returns how many more sequences slots and waiting queue can take."""
        raise NotImplementedError

    def sequences(self) -> Iterator[Sequence]:
        """Yields all unfinished choices, the latest first. The set may change at every pause."""
        for submission in list(reversed(self._active)):
            for choice in reversed(submission.choices):
                if not choice.over:
                    yield choice

    def check_accepting(self, sequences: int) -> None:
        """Raises Draining, or TooManyRequests if `sequences` more would exceed `max-num-queued-reqs`."""
        if self.draining:
            raise Draining
        if not self.healthy:
            raise EngineDead
        most = self._max_unfinished
        if most is not None and (unfinished := self._unfinished) + sequences > most:
            self.recorder.rejected("max_num_queued_reqs")
            raise TooManyRequests(unfinished, most)

    def check_admission(self, sequences: int, adapter: str | None = None) -> None:
        """Checks as `check_accepting`; raises QueueFull when slots and queue cannot hold `sequences` more."""
        self.check_accepting(sequences)
        if sequences > self._free(adapter):
            raise QueueFull(self._queued)

    def room(self, adapter: str | None = None) -> int:
        """Returns how many sequences slots and waiting queue could admit now."""
        most, room = self._max_unfinished, self._free(adapter)
        return room if most is None else min(room, most - self._unfinished)

    def submit(self, requests: Listed[EngineRequest], emit: Emit) -> Handle:
        """Runs all choices of a request, with pauses, or raises an EngineError before any begins."""
        raise NotImplementedError

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """Ends the requests with these ids, or all, each choice with `abort`; returns the number of choices.

        A prompt with several choices adds one. With `counted` the choices enter the metrics of finished
        requests, as vLLM counts requests that its engine ends (pause, sleep). Pauses when there are many.
        """
        slices = Slices()
        return sum([it.interrupt(request_ids, slices, counted) for it in list(self._active)])

    def drain(self) -> None:
        """Admits no more requests; admitted ones run to their end."""
        self.draining = True
