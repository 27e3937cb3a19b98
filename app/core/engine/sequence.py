"""A request in the engine: its choices, from submission to their ends, with outputs and metrics.

`Sequence` is one choice, and the base class of three: `TimedSequence` (own timeline) and
`SteppedSequence` (steps shared by sequences) emit replies decided at arrival, `RemoteSequence`
emits the outputs of an engine in another process. The caller of
`EngineClient.submit` gets a `Handle`, with all choices of one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as ListOf
from concurrent.futures import Future
from typing import Any

from app.core.base.clock.pause import Slices
from app.core.base.metrics.recorder import (
    FinishedSequence,
    FinishReason,
    Recorder,
    phase_seconds,
)
from app.core.base.overload import ClientLeftError
from app.core.engine.batch import SequenceState, SequenceStatus
from app.core.engine.outputs import Emit, Failed, Finish, Started, TakeToken, TokenLogprob, Tokens
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch, notify

ABORT = Finish("abort")
COUNTED_AS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "cache_threshold": "stop",
    "content_filter": "stop",
    "repetition": "repetition",
}
"""Finish reason in the metrics, by the cause of the stop."""
INTERRUPT_STEPS = 4
"""Work of ending one choice, in steps of `Slices`."""
log = logging.getLogger(__name__)


class Sequence(SequenceState):
    """One choice, from submission to its last token, failure or abort."""

    in_steps = False
    """True if tokens that come together belong to one step, which has one gap before it."""

    # Thousands of sequences take turns: each must touch little memory.
    __slots__ = (
        "_emit",
        "_first_s",
        "_handle",
        "_last_s",
        "_leave",
        "_now",
        "_recorder",
        "_take_token",
        "adapter",
        "begun",
        "created_future",
        "over",
        "queued_s",
        "request",
        "scheduled_s",
        "tokens",
        "watches",
    )

    def __init__(
        self,
        request: EngineRequest,
        output_tokens: int,
        *,
        now: Callable[[], float],
        recorder: Recorder,
        handle: Handle,
        leave: Callable[[Any], None],
    ) -> None:
        """`output_tokens` is the length of the reply if known, else the limit.

        `now` returns monotonic seconds. `leave` removes the sequence from its engine; it is called
        once, after the last output.
        """
        super().__init__(
            len(request.prompt_ids), output_tokens, request.priority, request.remote_prefill
        )
        self.request = request
        self.adapter = request.adapter
        self.tokens = 0
        self.begun = False
        """True once `Started` is emitted."""
        self.over = False
        assert handle.emit is not None
        self._now = now
        self._recorder = recorder
        self._emit = handle.emit
        self._handle = handle
        self._leave = leave
        self.watches: Iterable[Watch] = ()
        self._take_token: TakeToken | None = None
        self.created_future: Future[SequenceOutcome] | None = None
        """Future that `future` has created; None before its first use."""
        self.queued_s = request.arrival_s
        self.scheduled_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def future(self) -> Future[SequenceOutcome]:
        """Completes with the outcome, or with the error, when the sequence ends.

        Until the sequence starts, the future can be cancelled. It is created on first use: a future
        takes 1.7 KB, and streams do not need one.
        """
        if self.created_future is None:
            self.created_future = Future()
            if self.scheduled_s is not None:
                self.created_future.set_running_or_notify_cancel()
        return self.created_future

    def status(self) -> SequenceStatus:
        """Returns the progress of the sequence."""
        raise NotImplementedError

    def text(self, whole: bool = True) -> str:
        """Returns the reply so far; unless `whole`, without thoughts, calls and images."""
        return ""

    def _start(
        self, at_s: float, prompt_logprobs: ListOf[TokenLogprob | None] | None, is_plain: bool
    ) -> None:
        """Emits `Started`; for plain tokens the writer may answer with a receiver of tokens."""
        self.begun = True
        take_token = self._emit(
            Started(
                index=self.request.index,
                at_s=at_s,
                cached_tokens=self.cached_tokens + self.fetched_tokens,
                prompt_logprobs=prompt_logprobs,
                queued_s=self.queued_s,
                scheduled_s=self.scheduled_s,
                created_tokens=self.created_tokens,
            )
        )
        if is_plain and not self.over:
            self._take_token = take_token

    def _account(self, tokens: int, at_s: float) -> None:
        """Counts new tokens.

        Of several in a first output, all but one count as decoded without delay.
        """
        recorder = self._recorder
        if self._first_s is None:
            self._first_s = at_s
            request = self.request
            if self.fetched_tokens and request.remote_prefill:
                recorder.fetched(self.fetched_tokens, at_s - (self.scheduled_s or at_s))
            elif self.fetched_tokens:
                recorder.loaded(self.fetched_tokens)
            cached_tokens = self.cached_tokens + self.fetched_tokens
            ttft_s = at_s - request.arrival_s
            recorder.prefilled(
                ttft_s, self.prompt_tokens, cached_tokens, at_s, tokens=min(tokens, 1)
            )
            if tokens > 1:
                recorder.decoded(tokens - 1, 0.0, at_s)
        elif tokens:
            gaps = 1 if self.in_steps else tokens
            recorder.decoded(gaps, (at_s - self._last_s) / gaps, at_s)
            if tokens > gaps:
                recorder.generated(tokens - gaps)
        self.tokens += tokens
        self._last_s = at_s

    def fail(self, error: Exception, reason: FinishReason = "error") -> None:
        """Ends the sequence with an error, and emits the error. Does nothing after its end."""
        if not self.over:
            self.over = True
            emit_failure(self.request, error, self._emit)
            self._end(reason, error=error)

    def abort(self) -> None:
        """Ends the sequence without an output. Does nothing after its end."""
        if not self.over:
            self._end("abort", counted=False)

    def cancel(self) -> None:
        """Ends a sequence that has not started, with reason `abort`, and cancels its future."""
        if self.created_future is not None and self.created_future.cancel():
            self.created_future.set_running_or_notify_cancel()
        self.interrupt()

    def interrupt(self, counted: bool = False) -> None:
        """Ends the sequence with reason `abort`. For `counted` see `EngineClient.interrupt`."""
        if self.over:
            return
        self.over = True
        now_s = self._now()
        index = self.request.index
        try:
            if not self.begun:
                self._emit(Started(index, now_s))
            self._emit(Tokens(index, (), (), now_s, finish=ABORT))
        finally:
            self._end("abort", counted)

    def outcome(self, reason: str, now_s: float) -> SequenceOutcome:
        """Returns the outcome at `now_s`; `reason` is `waiting` or `running` before the end."""
        first_s = self._first_s
        return SequenceOutcome(
            reason=reason,
            queued_s=self.queued_s,
            scheduled_s=self.scheduled_s,
            first_token_s=first_s,
            last_token_s=None if first_s is None else self._last_s,
            ended_s=now_s,
            tokens=self.tokens,
            cached_tokens=self.cached_tokens,
            fetched_tokens=self.fetched_tokens,
            preemptions=self.preemptions,
            text=self.text(whole=False),
        )

    def claim_future(self, future: Future[SequenceOutcome]) -> bool:
        """Marks the future as running; returns False, and aborts the sequence, if cancelled."""
        is_wanted = future.set_running_or_notify_cancel()
        if not is_wanted:
            self.abort()
        return is_wanted

    def _end(
        self, reason: FinishReason, counted: bool = True, error: Exception | None = None
    ) -> None:
        now_s = self._now()
        request = self.request
        self.over = True
        self._take_token = None
        choices = 1
        longest = self.tokens
        if request.n != 1:
            choices, longest = self._handle.count(self)
        if counted:
            queue_s, prefill_s, decode_s = phase_seconds(
                self.queued_s,
                self.scheduled_s,
                first_s=self._first_s,
                last_s=self._last_s,
                now_s=now_s,
            )
            finished = FinishedSequence(
                reason,
                prompt_tokens=self.prompt_tokens,
                generation_tokens=self.tokens,
                cached_tokens=self.cached_tokens + self.fetched_tokens,
                max_tokens=request.max_tokens,
                queue_s=queue_s,
                prefill_s=prefill_s,
                decode_s=decode_s,
                e2e_s=now_s - request.arrival_s,
                preemptions=self.preemptions,
                choices=choices,
                longest=longest,
            )
            self._recorder.sequence_finished(finished)
        else:
            self._recorder.aborted()
        if self.watches:
            notify(self.watches, self.outcome(reason, now_s))
        self._handle.end_one()
        future = self.created_future
        if future is not None and not future.done():
            if error is None:
                future.set_result(self.outcome(reason, now_s))
            else:
                future.set_exception(error)
        self._leave(self)


class Handle:
    """The choices of one submitted request.

    The last choice to end clears the references: no cycle is left.
    """

    __slots__ = ("_active", "_future", "_lengths", "_unfinished", "choices", "emit")

    def __init__(self, active: dict[Handle, None], emit: Emit | None = None) -> None:
        """`active` holds the engine's unfinished requests, in order of arrival."""
        self._active = active
        self.emit = emit
        self.choices: ListOf[Sequence] = ()
        """All choices; empty after the last one ends."""
        self._unfinished = 0
        self._lengths: dict[int, list[int]] | None = None
        self._future: Future[Any] | None = None

    @property
    def future(self) -> Future[Any]:
        """Future that completes when every choice has ended, in any way.

        The future of a single choice is the one that `SequenceExecutor.submit` returns. Several
        choices have a common future, which cannot be cancelled.
        """
        if self._future is None:
            if len(self.choices) == 1:
                self._future = self.choices[0].future
            else:
                self._future = Future()
                self._future.set_running_or_notify_cancel()
                if not self._unfinished:
                    self._future.set_result(None)
        return self._future

    def begin(self, sequences: ListOf[Sequence]) -> None:
        """Enters the request among the active ones."""
        self.choices = sequences
        self._unfinished = len(sequences)
        self._active[self] = None

    def abort(self) -> None:
        """Ends unfinished choices. Nothing more is emitted."""
        # The last one first: the slot of a running choice would start one that waits behind it.
        for sequence in reversed(self.choices):
            sequence.abort()

    def interrupt(self, request_ids: Container[str] | None, slices: Slices, counted: bool) -> int:
        """Ends the choices with these request ids, or all. See `EngineClient.interrupt`."""
        unfinished = []
        parents = set()
        for sequence in reversed(self.choices):
            request = sequence.request
            if not sequence.over and (request_ids is None or request.request_id in request_ids):
                unfinished.append(sequence)
                if request.n > 1:
                    parents.add(request.index // request.n)
        for sequence in unfinished:
            sequence.interrupt(counted)
            slices.spend(INTERRUPT_STEPS)
        return len(unfinished) + len(parents)

    def count(self, sequence: Sequence) -> tuple[int, int]:
        """Returns `choices` and `longest` of `FinishedSequence`.

        Returns 0, 0 before the last choice of the prompt.
        """
        n = sequence.request.n
        if self._lengths is None:
            self._lengths = {}
        lengths = self._lengths.setdefault(sequence.request.index // n, [])
        lengths.append(sequence.tokens)
        if len(lengths) < n:
            return 0, 0
        return n, max(lengths)

    def end_one(self) -> None:
        """Counts one finished choice, after its last output.

        The last of several choices completes their common future.
        """
        self._unfinished -= 1
        if not self._unfinished:
            is_single = len(self.choices) == 1
            self.choices = ()
            self.emit = None
            del self._active[self]
            if self._future is not None and not is_single:
                self._future.set_result(None)


def reason_of(error: Exception) -> FinishReason:
    """Returns the reason of a sequence whose start has raised `error`, which is logged.

    A client that has left is no error.
    """
    if isinstance(error, ClientLeftError):
        return "abort"
    log.exception("a sequence failed to start")
    return "error"


def emit_failure(request: EngineRequest, error: Exception, emit: Emit) -> None:
    """Emits `Failed`; an error of the receiver is logged."""
    try:
        emit(Failed(request.index, error))
    except Exception:
        log.exception("the failure of a sequence could not be reported")
