"""A sequence alone on its own timeline: latencies as the simulators' settings say them (simulator.md 9).

The sequence itself stands in the waiting queue, holds the slot and waits in the timer wheel: nothing else is
made for it, and nothing for a token but the output.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Listed

from app.engine.cache_manager import SequenceBlocks
from app.engine.client import Emit, TakeToken
from app.engine.pool import SequencePool
from app.engine.reply import Reply
from app.engine.request import EngineRequest
from app.engine.sequence import CACHE_THRESHOLD, MOST_AT_ONCE, ReplySequence, SequenceContext, Submission
from app.engine.status import Phase, SequenceStatus
from app.metrics.sequences import FinishReason

log = logging.getLogger(__name__)


class TimedSequence(ReplySequence):
    """One choice. It holds its slot from `start` until its last token, failure or abort.

    Moments are absolute: start + time to first token + the sum of the waits so far.
    """

    __slots__ = ("_due_s", "_holds_slot", "_pool", "_queued")

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        blocks: SequenceBlocks | None,
        context: SequenceContext,
        emit: Emit,
        submission: Submission,
        pool: SequencePool,
    ) -> None:
        super().__init__(request, reply, blocks, context, emit, submission)
        self._pool = pool
        self._queued = self._holds_slot = False
        self._due_s = 0.0

    def enter(self, soon: bool) -> None:
        """Ask for a slot, or for one in a later turn; wait in the queue when none is free."""
        if not self._pool.submit(self, soon) and not self.over:
            self._queued = True
            self._recorder.waiting(1, self.adapter)

    def start(self) -> bool:
        """A slot is ours; what is due already is emitted before this returns. False when that was all."""
        context = self._context
        now_s, recorder = context.clock.now(), context.recorder
        at_s = self.request.arrival_s
        if self._queued:
            self._queued = False
            recorder.waiting(-1, self.adapter)
            at_s = now_s
        self._scheduled_s = at_s
        recorder.running(1, self.adapter)
        try:
            self._prefill(at_s)
            next_s = self.turn(now_s) if self._due_s <= now_s else self._due_s
        except Exception as error:
            log.exception("a sequence failed at its start")
            self.fail(error)
            return False
        if self.over or next_s is None:
            return False
        self._holds_slot = True
        context.wheel.add(next_s, self)
        return True

    def _prefill(self, at_s: float) -> None:
        """Begin at `at_s`: take the blocks, and see when the first token is due."""
        request, prompt_tokens = self.request, len(self.request.prompt_ids)
        if self.blocks is not None:
            self._cached_tokens, created = self.blocks.allocate()
        if self._cached_tokens < request.least_hit_rate * prompt_tokens:
            # Too little is cached: the reply is empty, and comes at once (simulator.md 13.7).
            self._empty(CACHE_THRESHOLD)
            self._due_s = at_s
            return
        if request.remote_prefill:
            self._fetched_tokens = prompt_tokens - self._cached_tokens
        elif self.blocks is not None:
            self._fetched_tokens = self.blocks.loaded
            self._created_tokens = created
        self._due_s = at_s + self._context.timing.time_to_first_token(
            prompt_tokens, self._cached_tokens + self._fetched_tokens, request.remote_prefill
        )
        if self._delays is not None:
            self._due_s += self._delays.get(0, 0.0)

    def turn(self, now_s: float) -> float | None:
        """Emit what is due at `now_s`; when the next token is due, None when that was the last."""
        take = self._take_token
        if take is not None and (next_s := self._plain_turn(take, now_s)) is not None:
            return next_s
        if self.over:  # the wheel forgets us now
            return None
        context, start, at_s = self._context, self._position, self._due_s
        if not self._begun:
            self._begin(at_s)
            if self.over:  # aborted by whoever took it
                return None
        stop, next_s, part = start + 1, at_s, self._part
        if stop < self._part_end:
            gap_s = context.timing.constant_gap_s
            next_s += gap_s if gap_s is not None and self._delays is None else self._gap(stop)
            if next_s <= now_s and self.request.together == 1:  # several choices take turns, token by token
                stop, at_s, next_s = self._due_together(stop, next_s, now_s)
        if stop == self._part_end and stop < len(self._texts):
            next_s += self._next_part(stop)
        self._due_s = next_s
        if not self._emit_until(stop, at_s, part):
            return None
        # Choices that are late together take turns: none goes back before the moment of the others.
        return next_s if next_s > now_s else now_s

    def _plain_turn(self, take: TakeToken, now_s: float) -> float | None:
        """The turn of a token that is like nearly all; when the next one is due. None: take a usual turn."""
        context, start, at_s = self._context, self._position, self._due_s
        stop, gap_s = start + 1, context.timing.constant_gap_s
        if gap_s is None or not start or stop >= self._part_end or self._part is not None:
            return None
        next_s = at_s + gap_s
        if next_s <= now_s:  # it comes together with the next one
            return None
        self._position, self._due_s = stop, next_s
        token_id = self._ids[start]
        if self.blocks is not None:
            self.blocks.append((token_id,))
        context.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], token_id, at_s)
        return next_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """The end of the tokens that leave now, and the moments of the last of them and of the next token.

        The one before `stop` is due, and so is `stop` since `next_s`.
        """
        at_s, end = self._due_s, min(self._part_end, stop - 1 + self._most)
        if self._delays is None and self._context.timing.constant_gap_s == 0:
            return end, next_s, next_s
        while stop < end and next_s <= now_s:
            at_s = next_s
            stop += 1
            if stop < self._part_end:
                next_s += self._gap(stop)
        return stop, at_s, next_s

    @property
    def _most(self) -> int:
        """Tokens that may leave together: with log probabilities, fewer."""
        wanted = self.request.logprobs
        return MOST_AT_ONCE if wanted is None else max(1, MOST_AT_ONCE // (wanted + 2))

    def _gap(self, token: int) -> float:
        """Seconds between the token before `token` and that one."""
        gap_s = self._context.timing.inter_token()
        return gap_s if self._delays is None else gap_s + self._delays.get(token, 0.0)

    def _next_part(self, token: int) -> float:
        """Go on to the part that begins with `token`; the seconds until it is due."""
        return self._context.timing.image() if self._to_next_part() else self._gap(token)

    def status(self) -> SequenceStatus:
        running_s, first_s = self._scheduled_s, self._first_s
        if running_s is None:
            return SequenceStatus(Phase.QUEUED, 0, 0, None, None)
        before = Phase.TRANSFER if self.request.remote_prefill else Phase.PREFILL
        phase = before if first_s is None else Phase.DECODE
        return SequenceStatus(phase, self.prompt_tokens, 0, running_s, first_s)

    def _write(self, ids: Listed[int]) -> None:
        if self.blocks is not None:
            self.blocks.append(ids)

    def _release(self) -> None:
        if self.blocks is not None:
            blocks, self.blocks = self.blocks, None
            blocks.release()

    def _withdraw(self) -> None:
        if self._queued:
            self._queued = False
            self._pool.withdraw(self)
            self._recorder.waiting(-1, self.adapter)
        elif self._scheduled_s is not None:
            self._recorder.running(-1, self.adapter)

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        super()._end(reason, counted)
        if self._holds_slot:
            self._pool.leave(self)
