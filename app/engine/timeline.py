"""A sequence alone on its own timeline: latencies as the simulators' settings say them (simulator.md 9).

The sequence itself stands in the waiting queue, holds the slot and waits in the timer wheel: nothing else is
made for it, and nothing for a token but the output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.engine.cache_manager import SequenceBlocks
from app.engine.client import Emit, TakeToken
from app.engine.executor import SlotExecutor
from app.engine.reply import Reply
from app.engine.request import EngineRequest
from app.engine.sequence import CACHE_THRESHOLD, MOST_AT_ONCE, Runtime, Sequence

log = logging.getLogger(__name__)


class TimedSequence(Sequence):
    """One choice. It holds its slot from `start` until its last token, failure or abort.

    Moments are absolute: start + time to first token + the sum of the waits so far.
    """

    __slots__ = ("_due_s", "_executor", "_holds_slot", "_queued")

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        blocks: SequenceBlocks | None,
        runtime: Runtime,
        emit: Emit,
        ended: Callable[[Sequence], tuple[int, int]],
        executor: SlotExecutor,
    ) -> None:
        super().__init__(request, reply, blocks, runtime, emit, ended)
        self._executor = executor
        self._queued = self._holds_slot = False
        self._due_s = 0.0

    def enter(self, soon: bool) -> None:
        """Ask for a slot, or for one in a later turn; wait in the queue when none is free."""
        if not self._executor.enter(self, soon) and not self.over:
            self._queued = True
            self._runtime.recorder.waiting(1, self.adapter)

    def start(self) -> bool:
        """A slot is ours; what is due already is emitted before this returns. False when that was all."""
        runtime = self._runtime
        now_s, recorder = runtime.clock.now(), runtime.recorder
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
        runtime.wheel.add(next_s, self)
        return True

    def _prefill(self, at_s: float) -> None:
        """Begin at `at_s`: take the blocks, and see when the first token is due."""
        request, prompt_tokens = self.request, len(self.request.prompt_ids)
        if self._blocks is not None:
            self._cached_tokens = self._blocks.allocate()
        if self._cached_tokens < request.least_hit_rate * prompt_tokens:
            # Too little is cached: the reply is empty, and comes at once (simulator.md 13.7).
            self._empty(CACHE_THRESHOLD)
            self._due_s = at_s
            return
        if request.remote_prefill:
            self._fetched_tokens = prompt_tokens - self._cached_tokens
        elif self._blocks is not None:
            self._fetched_tokens = self._blocks.loaded
            self._created_tokens = self._blocks.created(self._cached_tokens + self._fetched_tokens)
        self._due_s = at_s + self._runtime.timing.time_to_first_token(
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
        runtime, start, at_s = self._runtime, self._position, self._due_s
        if not self._begun:
            self._begin(at_s)
            if self.over:  # aborted by whoever took it
                return None
        stop, next_s, part = start + 1, at_s, self._part
        if stop < self._part_end:
            gap_s = runtime.timing.constant_gap_s
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
        runtime, start, at_s = self._runtime, self._position, self._due_s
        stop, gap_s = start + 1, runtime.timing.constant_gap_s
        if gap_s is None or not start or stop >= self._part_end or self._part is not None:
            return None
        next_s = at_s + gap_s
        if next_s <= now_s:  # it comes together with the next one
            return None
        self._position, self._due_s = stop, next_s
        token_id = self._ids[start]
        if self._blocks is not None:
            self._blocks.append((token_id,))
        runtime.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], token_id, at_s)
        return next_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """The end of the tokens that leave now, and the moments of the last of them and of the next token.

        The one before `stop` is due, and so is `stop` since `next_s`.
        """
        at_s, end = self._due_s, min(self._part_end, stop - 1 + self._most)
        if self._delays is None and self._runtime.timing.constant_gap_s == 0:
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
        gap_s = self._runtime.timing.inter_token()
        return gap_s if self._delays is None else gap_s + self._delays.get(token, 0.0)

    def _next_part(self, token: int) -> float:
        """Go on to the part that begins with `token`; the seconds until it is due."""
        return self._runtime.timing.image() if self._to_next_part() else self._gap(token)

    def _withdraw(self) -> None:
        recorder = self._runtime.recorder
        if self._queued:
            self._queued = False
            self._executor.forget(self)
            recorder.waiting(-1, self.adapter)
        elif self._scheduled_s is not None:
            recorder.running(-1, self.adapter)

    def _leave(self) -> None:
        if self._holds_slot:
            self._executor.leave(self)
