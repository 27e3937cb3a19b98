"""Sequences: the choices of requests in an engine, from submission to end, with outputs and metrics.

`Sequence` is the base class. `ReplySequence` emits a reply decided at arrival: `TimedSequence` on its own
timeline, `SteppedSequence` in steps shared by sequences. `RemoteSequence` emits the outputs of an engine in
another process. `EngineClient` is the base of both engines, and the door for all code above them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Sequence as Listed
from concurrent.futures import Future
from typing import Any

from app.base.clock.pause import Slices
from app.base.metrics.recorder import FinishedSequence, FinishReason, Recorder
from app.engine.core.batch import SequenceState, SequenceStatus
from app.engine.core.errors import Draining, EngineDead, QueueFull, TooManyRequests
from app.engine.core.outputs import Emit, Failed, Finish, Started, TakeToken, TokenLogprob, Tokens
from app.engine.core.request import EngineRequest, SequenceOutcome, Watch, notify
from config.settings import Settings

ABORT = Finish("abort")
COUNTED_AS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "cache_threshold": "stop",
    "content_filter": "stop",
}
INTERRUPT_STEPS = 4
"""Work of ending one choice, in steps of `Slices`."""
log = logging.getLogger(__name__)


class Sequence(SequenceState):
    """One choice, from submission to its last token, failure or abort."""

    # Thousands of sequences take turns: each must touch little memory.
    __slots__ = (
        *("_emit", "_first_s", "_last_s", "_now", "queued_s", "_recorder", "scheduled_s"),
        *("_handle", "_leave", "_take_token", "adapter", "begun", "over", "request", "tokens", "watches"),
    )

    def __init__(
        self,
        request: EngineRequest,
        output_tokens: int,
        now: Callable[[], float],
        recorder: Recorder,
        handle: Handle,
        leave: Callable[[Any], None],
    ) -> None:
        """`output_tokens` is the reply's length if known, else the limit; `now` returns monotonic seconds.

        `leave` takes the sequence out of its engine, once, after its last output.
        """
        prompt_tokens, priority = len(request.prompt_ids), request.priority
        super().__init__(prompt_tokens, output_tokens, priority, request.remote_prefill)
        self.request = request
        self.adapter = request.adapter
        self.tokens = 0
        self.begun = False
        self.over = False
        assert handle.emit is not None
        self._now, self._recorder, self._emit = now, recorder, handle.emit
        self._handle, self._leave = handle, leave
        self.watches: Iterable[Watch] = ()
        self._take_token: TakeToken | None = None
        self.queued_s = request.arrival_s
        self.scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def status(self) -> SequenceStatus:
        raise NotImplementedError

    @property
    def text(self) -> str:
        return ""

    def _start(
        self, at_s: float, prompt_logprobs: Listed[TokenLogprob | None] | None, is_plain: bool
    ) -> None:
        """Emits `Started`; the writer may answer with a receiver of the tokens, if these are plain."""
        self.begun = True
        began_s = at_s if self.scheduled_s is None else self.scheduled_s
        cached = self.cached_tokens + self.fetched_tokens
        queue_s, prefill_s = max(0.0, began_s - self.queued_s), max(0.0, at_s - began_s)
        index, created = self.request.index, self.created_tokens
        take = self._emit(Started(index, at_s, cached, prompt_logprobs, queue_s, prefill_s, created))
        if is_plain and not self.over:
            self._take_token = take

    def _account(self, tokens: int, at_s: float) -> None:
        """Counts new tokens. Of several in a first output, all but one count as decoded without delay."""
        recorder = self._recorder
        if self._first_s is None:
            self._first_s = at_s
            request, cached = self.request, self.cached_tokens + self.fetched_tokens
            if self.fetched_tokens and request.remote_prefill:
                recorder.fetched(self.fetched_tokens, at_s - (self.scheduled_s or at_s))
            elif self.fetched_tokens:
                recorder.loaded(self.fetched_tokens)
            ttft_s = at_s - request.arrival_s
            recorder.prefilled(ttft_s, self.prompt_tokens, cached, at_s, min(tokens, 1))
            if tokens > 1:
                recorder.decoded(tokens - 1, 0.0, at_s)
        elif tokens:
            recorder.decoded(tokens, (at_s - self._last_s) / tokens, at_s)
        self.tokens += tokens
        self._last_s = at_s

    def fail(self, error: Exception) -> None:
        """Ends the sequence with an error, and emits the error. Does nothing after its end."""
        if not self.over:
            self.over = True
            emit_failure(self.request, error, self._emit)
            self._end("error")

    def abort(self) -> None:
        if not self.over:
            self._end("abort", counted=False)

    def interrupt(self, counted: bool = False) -> None:
        """Ends the sequence with reason `abort`. For `counted` see `EngineClient.interrupt`."""
        if self.over:
            return
        self.over = True
        now_s, index = self._now(), self.request.index
        try:
            if not self.begun:
                self._emit(Started(index, now_s))
            self._emit(Tokens(index, (), (), now_s, None, ABORT))
        finally:
            self._end("abort", counted)

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        now_s, request = self._now(), self.request
        self.over = True
        self._take_token = None
        choices, longest = (1, self.tokens) if request.n == 1 else self._handle.count(self)
        if counted:
            scheduled_s = now_s if self.scheduled_s is None else self.scheduled_s
            first_s = scheduled_s if self._first_s is None else self._first_s
            finished = FinishedSequence(
                reason,
                prompt_tokens=self.prompt_tokens,
                generation_tokens=self.tokens,
                cached_tokens=self.cached_tokens + self.fetched_tokens,
                max_tokens=request.max_tokens,
                queue_s=max(0.0, scheduled_s - self.queued_s),
                prefill_s=max(0.0, first_s - scheduled_s),
                decode_s=max(0.0, self._last_s - first_s),
                e2e_s=now_s - request.arrival_s,
                preemptions=self.preemptions,
                choices=choices,
                longest=longest,
            )
            self._recorder.sequence_finished(finished)
        else:
            self._recorder.aborted()
        if self.watches:
            outcome = SequenceOutcome(
                reason=reason,
                scheduled_s=self.scheduled_s,
                first_token_s=self._first_s,
                last_token_s=None if self._first_s is None else self._last_s,
                ended_s=now_s,
                cached_tokens=self.cached_tokens,
                tokens=self.tokens,
            )
            notify(self.watches, outcome)
        self._handle.end_one()
        self._leave(self)


class Handle:
    """The choices of one submitted request. The last one to end clears the references: no cycle is left."""

    __slots__ = ("_active", "_future", "_lengths", "_unfinished", "choices", "emit")

    def __init__(self, active: dict[Handle, None], emit: Emit | None = None) -> None:
        """`active` holds the engine's unfinished requests, in order of arrival."""
        self._active, self.emit = active, emit
        self.choices: Listed[Sequence] = ()
        """All choices; empty after the last one ends."""
        self._unfinished = 0
        self._lengths: dict[int, list[int]] | None = None
        self._future: Future[None] | None = None

    @property
    def future(self) -> Future[None]:
        """Done when all choices have ended, in any way; cannot be cancelled. Streams need no such 1.7 KB."""
        if self._future is None:
            self._future = Future()
            self._future.set_running_or_notify_cancel()
            if not self._unfinished:
                self._future.set_result(None)
        return self._future

    def begin(self, sequences: Listed[Sequence]) -> None:
        self.choices = sequences
        self._unfinished = len(sequences)
        self._active[self] = None

    def abort(self) -> None:
        """Ends unfinished choices. Nothing more is emitted."""
        for sequence in reversed(self.choices):
            sequence.abort()

    def interrupt(self, request_ids: Container[str] | None, slices: Slices, counted: bool) -> int:
        """Ends the choices with these request ids, or all. See `EngineClient.interrupt`."""
        found = [
            it
            for it in reversed(self.choices)
            if not it.over and (request_ids is None or it.request.request_id in request_ids)
        ]
        parents = {it.request.index // it.request.n for it in found if it.request.n > 1}
        for sequence in found:
            sequence.interrupt(counted)
            slices.spend(INTERRUPT_STEPS)
        return len(found) + len(parents)

    def count(self, sequence: Sequence) -> tuple[int, int]:
        """Returns `choices` and `longest` of `FinishedSequence`: 0, 0 before the prompt's last choice."""
        n = sequence.request.n
        if self._lengths is None:
            self._lengths = {}
        lengths = self._lengths.setdefault(sequence.request.index // n, [])
        lengths.append(sequence.tokens)
        return (n, max(lengths)) if len(lengths) == n else (0, 0)

    def end_one(self) -> None:
        """Counts one finished choice, after its last output; the last choice completes the future."""
        self._unfinished -= 1
        if not self._unfinished:
            self.choices, self.emit = (), None
            del self._active[self]
            if self._future is not None:
                self._future.set_result(None)


def emit_failure(request: EngineRequest, error: Exception, emit: Emit) -> None:
    try:
        emit(Failed(request.index, error))
    except Exception:
        log.exception("the failure of a sequence could not be told")


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
        self.draining = True
