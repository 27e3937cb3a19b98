"""A sequence on its own timeline: its latencies come from the settings.

The sequence object itself is queued, holds the slot and sits in the timer wheel. A token costs no
object but its output.
"""

from __future__ import annotations

from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.executor import SequenceExecutor
from app.core.engine.reply_sequence import ReplySequence
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sequence import Handle, reason_of

MAX_OUTPUT_TOKENS = 1024
"""Maximum tokens of one output, fewer with log probabilities: bounds the time to render it."""
MAX_PLAIN_GAPS = 3
"""Lateness in gaps from which on tokens that are due together share one output.

An output takes as long as ten ordinary tokens, and a token of an output a fifth of one.
"""


def max_tokens_with(logprobs: int) -> int:
    """Returns the most tokens of one output whose tokens have so many log probabilities."""
    return max(1, MAX_OUTPUT_TOKENS // (logprobs + 2))


class TimedSequence(ReplySequence):
    """One choice, which holds its slot from `start` until its last token, failure or abort.

    Times are absolute: start + time to first token + the sum of the waits so far.
    """

    __slots__ = ("due_s", "has_waited")

    def __init__(
        self, executor: SequenceExecutor, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(executor, request, reply, handle)
        self.has_waited = False
        self.due_s = 0.0

    def start(self) -> bool:
        """Starts with a slot, and emits tokens already due.

        Returns False if the sequence is over.
        """
        if self.created_future is not None and not self.claim_future(self.created_future):
            return False
        context = self._context
        request = self.request
        now_s = context.clock.now()
        at_s = now_s if self.has_waited else request.arrival_s
        self.scheduled_s = at_s
        if self.adapter is not None:
            self._recorder.adapter_moved(self, self.adapter, "running")
        try:
            if context.cache is not None:
                context.cache.allocate(self)
            if self.cached_tokens < request.cache_hit_threshold * self.prompt_tokens:
                self.empty()
                self.fetched_tokens = 0
                self.created_tokens = 0
                self.due_s = at_s
            else:
                cached_tokens = self.cached_tokens + self.fetched_tokens
                self.due_s = at_s + context.timing.time_to_first_token(
                    self.prompt_tokens, cached_tokens, request.remote_prefill
                )
                self.due_s += self.load_s
                if self._delays is not None:
                    self.due_s += self._delays.get(0, 0.0)
            next_s: float | None = self.due_s
            if self.due_s <= now_s:
                next_s = self.run_due(now_s)
        except Exception as error:
            self.fail(error, reason_of(error))
            return False
        if self.over or next_s is None:
            return False
        self.running = True
        context.wheel.add(next_s, self)
        return True

    def run_due(self, now_s: float) -> float | None:
        """Emits tokens due at `now_s`; returns the next due time, None after the last token."""
        take_token = self._take_token
        start = self._position
        stop = start + 1
        context = self._context
        gap_s = context.timing.constant_gap_s
        if (
            take_token is None
            or gap_s is None
            or stop >= self._part_end
            or self._part is not self._taken_part
        ):
            return self._run_any(now_s)
        at_s = self.due_s
        next_s = at_s + gap_s
        late_s = now_s - next_s
        if late_s >= 0 and (late_s >= MAX_PLAIN_GAPS * gap_s or self.request.num_choices != 1):
            return self._run_any(now_s)
        self._position = stop
        self.due_s = next_s
        if context.cache is not None:
            context.cache.append(self, 1)
            context.cache.publish()
        context.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take_token(self._texts[start], self._ids[start], at_s)
        if late_s >= 0:
            return self.run_due(now_s)
        return next_s

    def _run_any(self, now_s: float) -> float | None:
        """Does what `run_due` does, for tokens of all kinds."""
        if self.over:  # the wheel now drops the sequence
            return None
        timing = self._context.timing
        at_s = self.due_s
        if not self.begun:
            reply = self._reply
            is_plain = reply.logprobs is None and self._delays is None
            self._start(at_s, reply.prompt_logprobs, is_plain)
            if self.over:  # aborted by the receiver of `Started`
                return None
        stop = self._position + 1
        next_s = at_s
        part = self._part
        if stop < self._part_end:
            gap_s = timing.constant_gap_s
            if gap_s is None or self._delays is not None:
                gap_s = self._gap(stop)
            next_s += gap_s
            # Several choices alternate token by token.
            if next_s <= now_s and self.request.num_choices == 1:
                stop, at_s, next_s = self._due_together(stop, next_s, now_s)
        if stop == self._part_end and stop < len(self._texts):
            next_s += timing.image() if self._to_next_part() else self._gap(stop)
        self.due_s = next_s
        if not self._emit_until(stop, at_s, part):
            return None
        # Late choices alternate: none returns a time before that of the others.
        return next_s if next_s > now_s else now_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """Returns the end of the tokens to emit now.

        Also returns the due times of the last such token and of the token after it.
        """
        max_tokens = MAX_OUTPUT_TOKENS
        if self.request.sampling.logprobs is not None:
            max_tokens = max_tokens_with(self.request.sampling.logprobs)
        at_s = self.due_s
        end = min(self._part_end, stop - 1 + max_tokens)
        if self._delays is None and self._context.timing.constant_gap_s == 0:
            return end, next_s, next_s
        while stop < end and next_s <= now_s:
            at_s = next_s
            stop += 1
            if stop < self._part_end:
                next_s += self._gap(stop)
        return stop, at_s, next_s

    def _gap(self, token: int) -> float:
        gap_s = self._context.timing.inter_token()
        if self._delays is not None:
            gap_s += self._delays.get(token, 0.0)
        return gap_s

    def status(self) -> SequenceStatus:
        """Returns the progress of the sequence."""
        if self.scheduled_s is None:
            return SequenceStatus(Phase.QUEUED, 0, 0, scheduled_s=None, first_s=None)
        if self._first_s is not None:
            phase = Phase.DECODE
        elif self.request.remote_prefill:
            phase = Phase.TRANSFER
        else:
            phase = Phase.PREFILL
        return SequenceStatus(
            phase=phase,
            computed=self.prompt_tokens,
            held=0,
            scheduled_s=self.scheduled_s,
            first_s=self._first_s,
        )
