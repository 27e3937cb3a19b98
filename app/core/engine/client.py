"""The base class of both engines: all code above the engine talks to an `EngineClient`."""

from __future__ import annotations

from collections.abc import Container, Iterator
from collections.abc import Sequence as ListOf

from app.core.base.clock.pause import Slices
from app.core.base.metrics.recorder import Recorder
from app.core.engine.errors import (
    DrainingError,
    EngineDeadError,
    EngineError,
    EngineFailedError,
    EnginePausedError,
    QueueFullError,
    ShutdownError,
    TooManyRequestsError,
)
from app.core.engine.outputs import Emit, Failed
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sequence import Handle, Sequence
from config.settings import SchedulingSettings

ENGINE_ENDED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
"""Error of requests that a vLLM has not answered when its engine ends."""


class EngineClient:
    """Admits requests and runs them; subclasses are in this process or speak to another one."""

    def __init__(self, scheduling: SchedulingSettings, recorder: Recorder) -> None:
        self.recorder = recorder
        self.withdrawn = False
        """True when the server is not ready because it ends soon; requests are still admitted."""
        self._refusal: type[EngineError] | None = None
        self.refuses_requests = False
        """True during a pause that rejects new requests."""
        self._slots = scheduling.max_num_seqs
        self._max_waiting = scheduling.max_waiting_queue_length
        self._max_unfinished = scheduling.max_num_queued_reqs
        self._active: dict[Handle, None] = {}
        """Unfinished submissions, in order of arrival."""

    @property
    def healthy(self) -> bool:
        """False while no engine can compute."""
        raise NotImplementedError

    @property
    def ranks(self) -> ListOf[EngineClient]:
        """The engines of the ranks of this port, in order."""
        return (self,)

    @property
    def running(self) -> int:
        """Number of running sequences of this worker."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Number of waiting sequences of this worker."""
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
        """Checks that the server accepts `sequences` more sequences at all.

        Raises:
            DrainingError, ShutdownError: The server is shutting down.
            EngineDeadError: No engine can compute.
            TooManyRequestsError: `max-num-queued-reqs` would be exceeded.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self.healthy:
            raise EngineDeadError
        limit = self._max_unfinished
        if limit is None:
            return
        unfinished = self._unfinished
        if unfinished + sequences > limit:
            self.recorder.rejected("max_num_queued_reqs")
            raise TooManyRequestsError(unfinished, limit)

    def refuse(self, requests: ListOf[EngineRequest], emit: Emit) -> None:
        """Emits that a pause rejects the request, if the server accepts requests at all.

        Raises:
            EngineError: as `check_accepting` does.
        """
        self.check_accepting(len(requests))
        emit(Failed(requests[0].index, EnginePausedError()))

    def check_admission(self, sequences: int, adapter: str | None = None) -> None:
        """Checks that slots and queue can hold `sequences` more sequences.

        Raises:
            QueueFullError: They cannot. Also raises the errors of `check_accepting`.
        """
        self.check_accepting(sequences)
        if sequences > self._free(adapter):
            raise QueueFullError(self._queued)

    def room(self, adapter: str | None = None) -> int:
        """Returns how many sequences slots and waiting queue could admit now."""
        room = self._free(adapter)
        if self._max_unfinished is not None:
            room = min(room, self._max_unfinished - self._unfinished)
        return room

    def submit(
        self, requests: ListOf[EngineRequest], emit: Emit, *, awaited: bool = False
    ) -> Handle:
        """Runs all choices of a request, with pauses.

        `awaited` means that the caller will wait for `Handle.future`, as a response in one piece
        does; a stream needs no future.

        Raises:
            EngineError: The request is not admitted; no choice has started.
        """
        raise NotImplementedError

    def decide(self, request: EngineRequest) -> Reply | None:
        """Returns the reply to the only choice of a request, for `reply_at_once` and `run`.

        Returns None if another process will decide it; the request is then submitted.

        Raises:
            EngineError: as `submit` does.
        """
        return None

    def reply_at_once(self, request: EngineRequest, reply: Reply, emit: Emit | None = None) -> bool:
        """Ends the only choice of a request with `reply`, if nothing takes time.

        Without `emit`, the reply is only counted. Returns False, with nothing emitted or counted,
        if the request has to run.

        Raises:
            EngineError: as `submit` does.
        """
        return False

    def run(
        self,
        requests: ListOf[EngineRequest],
        replies: ListOf[Reply],
        emit: Emit,
        awaited: bool = False,
    ) -> Handle:
        """Runs a request whose replies `decide` has returned; see `submit`."""
        raise NotImplementedError

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """Ends the requests with these ids, or all, each choice with reason `abort`.

        Returns the number of choices; a prompt with several choices adds one. With `counted` the
        choices enter the metrics of finished requests, as vLLM counts requests that its engine ends
        (pause, sleep). Pauses when there are many.
        """
        slices = Slices()
        return sum(
            [handle.interrupt(request_ids, slices, counted) for handle in list(self._active)]
        )

    @property
    def draining(self) -> bool:
        """True when no new requests are admitted."""
        return self._refusal is not None

    def drain(self, refusal: type[EngineError] = DrainingError) -> None:
        """Rejects new requests from now on, with the error `refusal`."""
        self._refusal = refusal

    def shut_down(self) -> None:
        """Rejects new requests from now on, with vLLM's error."""
        self.drain(ShutdownError)

    @property
    def in_flight(self) -> int:
        """Number of unfinished submissions."""
        return len(self._active)

    @property
    def is_generating(self) -> bool:
        """True while requests run or wait."""
        return self.in_flight > 0

    def fail(self) -> None:
        """Fails all unfinished requests, as the end of vLLM's engine does."""
        for handle in list(self._active):
            for choice in reversed(handle.choices):
                choice.fail(EngineFailedError(ENGINE_ENDED))
