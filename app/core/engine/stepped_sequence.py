"""A sequence that runs in the steps of an engine, together with others."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.executor import SequenceExecutor
from app.core.engine.reply_sequence import ReplySequence
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sequence import Handle

log = logging.getLogger(__name__)


class SteppedSequence(ReplySequence):
    """One choice in the steps of an engine; the scheduler holds this object itself."""

    __slots__ = ("_late", "_promised", "_shift_s")
    fills_cache = False
    in_steps = True

    def __init__(
        self, executor: SequenceExecutor, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(executor, request, reply, handle)
        self.choice = request.index % request.n
        self.stops = bool(reply.ids) and reply.finish.reason != "length"
        self._promised = 0
        """Number of tokens received from steps, if the reply has delays."""
        self._shift_s = 0.0
        """Sum of deliberate delays so far, in seconds."""
        self._late: deque[tuple[float, int]] = deque()
        """Due times and counts of delayed tokens."""

    def status(self) -> SequenceStatus:
        """Returns the progress of the sequence."""
        # A decode in bulk has computed its whole prompt; its `computed` is not up to date.
        phase = Phase.DECODE
        computed = self.prompt_tokens
        if not (self.decodes or self.last):
            computed = min(self.computed, computed)
            if self.running:
                phase = Phase.PREFILL
            elif self.preemptions:
                phase = Phase.PREEMPTED
            elif self.held:
                phase = Phase.TRANSFER
            else:
                phase = Phase.QUEUED
        return SequenceStatus(
            phase=phase,
            computed=computed,
            held=self.held,
            scheduled_s=self.scheduled_s,
            first_s=self._first_s,
        )

    def preempted(self) -> None:
        """Counts the preemption."""
        if not self.over:
            self._recorder.preempted()
            if self.adapter is not None:
                self._recorder.adapter_moved(self, self.adapter, "waiting")

    def hand_out(self, at_s: float, count: int) -> None:
        """Emits the next `count` tokens, due at `at_s`, or postpones them by deliberate delays.

        An error of the writer ends the sequence.
        """
        take_token = self._take_token
        start = self._position
        try:
            if (
                take_token is not None
                and count == 1
                and start
                and start + 1 < self._part_end
                and self._part is self._taken_part
            ):
                self._position = start + 1
                self._recorder.decoded(1, at_s - self._last_s, at_s)
                self.tokens += 1
                self._last_s = at_s
                take_token(self._texts[start], self._ids[start], at_s)
            elif self._delays is None or not self._postpone(self._delays, at_s, count):
                self._emit_parts(at_s, count)
        except Exception as error:
            log.exception("a token could not be delivered")
            self.fail(error)

    def _postpone(self, delays: Mapping[int, float], at_s: float, count: int) -> bool:
        """Postpones the next `count` tokens by deliberate delays; returns False without any."""
        for number in range(self._promised, self._promised + count):
            self._shift_s += delays.get(number, 0.0)
        self._promised += count
        if not self._shift_s:
            return False
        due_s = at_s + self._shift_s
        self._late.append((due_s, count))
        if len(self._late) == 1:
            self._context.wheel.add(due_s, self)
        return True

    def run_due(self, now_s: float) -> float | None:
        """Emits delayed tokens that are due; returns the due time of the next one."""
        while self._late and not self.over and self._late[0][0] <= now_s:
            due_s, count = self._late.popleft()
            self._emit_parts(due_s, count)
        if self._late and not self.over:
            return self._late[0][0]
        return None

    def _emit_parts(self, at_s: float, count: int) -> None:
        """Emits tokens part by part; an image after the last one takes its own time."""
        if not self.begun:
            reply = self._reply
            is_plain = reply.logprobs is None and self._delays is None
            self._start(at_s, reply.prompt_logprobs, is_plain)
        while not self.over:
            part = self._part
            stop = min(self._position + count, self._part_end)
            count -= stop - self._position
            is_image_next = False
            if stop == self._part_end and stop < len(self._texts):
                is_image_next = self._to_next_part()
            if not self._emit_until(stop, at_s, part):
                return
            if is_image_next:
                due_s = at_s + self._context.timing.image()
                self._late.append((due_s, 1))
                self._context.wheel.add(due_s, self)
            if is_image_next or count <= 0:
                return
