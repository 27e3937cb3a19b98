"""Sequences on their own timelines: latencies from the settings (simulator.md 9).

The sequence object itself is queued, holds the slot and sits in the timer wheel. A token costs no
object but its output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.engine.core.batch import LoRASlots, Phase, SequenceStatus
from app.engine.core.outputs import TakeToken
from app.engine.core.request import EngineRequest, Reply
from app.engine.core.scheduler import WaitingQueue
from app.engine.core.sequence import Handle, ReplySequence, SequenceContext

MOST_AT_ONCE = 1024
"""Most tokens in one output, fewer with log probabilities; bounds the rendering time of one event.
"""
MOST_PER_TURN = 128
"""Most sequences that start in one turn of the event loop; keeps other streams on time."""
log = logging.getLogger(__name__)


class TimedSequence(ReplySequence):
    """One choice, which holds its slot from `start` until its last token, failure or abort.

    Times are absolute: start + time to first token + the sum of the waits so far.
    """

    __slots__ = ("due_s", "has_waited", "holds_slot")

    def __init__(
        self, pool: SequencePool, request: EngineRequest, reply: Reply, handle: Handle
    ) -> None:
        super().__init__(pool, request, reply, handle)
        self.has_waited = self.holds_slot = False
        self.due_s = 0.0

    def start(self) -> bool:
        """Starts with a slot, and emits tokens already due; returns False if the sequence is over."""
        context, request, prompt_tokens = self._context, self.request, self.prompt_tokens
        now_s = context.clock.now()
        self.scheduled_s = at_s = now_s if self.has_waited else request.arrival_s
        if self.adapter is not None:
            self._recorder.adapter_moved(self, self.adapter, "running")
        try:
            if context.cache is not None:
                context.cache.allocate(self)
            if self.cached_tokens < request.cache_hit_threshold * prompt_tokens:
                self.empty()
                self.fetched_tokens = self.created_tokens = 0
                self.due_s = at_s
            else:
                known = self.cached_tokens + self.fetched_tokens
                remote = request.remote_prefill
                self.due_s = at_s + context.timing.time_to_first_token(prompt_tokens, known, remote)
                if self._delays is not None:
                    self.due_s += self._delays.get(0, 0.0)
            next_s = self.turn(now_s) if self.due_s <= now_s else self.due_s
        except Exception as error:
            log.exception("a sequence failed at its start")
            self.fail(error)
            return False
        if self.over or next_s is None:
            return False
        self.holds_slot = True
        context.wheel.add(next_s, self)
        return True

    def turn(self, now_s: float) -> float | None:
        """Emits tokens due at `now_s`; returns the next due time, None after the last token."""
        take = self._take_token
        if take is not None and (next_s := self._plain_turn(take, now_s)) is not None:
            return next_s
        if self.over:  # the wheel now drops the sequence
            return None
        timing, start, at_s = self._context.timing, self._position, self.due_s
        if not self.begun:
            reply = self._reply
            self._start(
                at_s, reply.prompt_logprobs, reply.logprobs is None and self._delays is None
            )
            if self.over:  # aborted by the receiver of `Started`
                return None
        stop, next_s, part = start + 1, at_s, self._part
        if stop < self._part_end:
            gap_s = timing.constant_gap_s
            next_s += gap_s if gap_s is not None and self._delays is None else self._gap(stop)
            if (
                next_s <= now_s and self.request.num_choices == 1
            ):  # several choices alternate token by token
                stop, at_s, next_s = self._due_together(stop, next_s, now_s)
        if stop == self._part_end and stop < len(self._texts):
            next_s += timing.image() if self._to_next_part() else self._gap(stop)
        self.due_s = next_s
        if not self._emit_until(stop, at_s, part):
            return None
        # Late choices alternate: none returns a time before that of the others.
        return next_s if next_s > now_s else now_s

    def _plain_turn(self, take: TakeToken, now_s: float) -> float | None:
        """Emits one ordinary token; returns the next due time, or None if a full `turn` is needed."""
        context, start, at_s = self._context, self._position, self.due_s
        stop, gap_s = start + 1, context.timing.constant_gap_s
        if gap_s is None or not start or stop >= self._part_end or self._part is not None:
            return None
        next_s = at_s + gap_s
        if next_s <= now_s:  # two tokens are due together
            return None
        self._position, self.due_s = stop, next_s
        if context.cache is not None:
            context.cache.append(self, 1)
            context.cache.publish()
        context.recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], self._ids[start], at_s)
        return next_s

    def _due_together(self, stop: int, next_s: float, now_s: float) -> tuple[int, float, float]:
        """Returns the end of the tokens to emit now, the last one's due time, and the next token's."""
        wanted = self.request.logprobs
        most = MOST_AT_ONCE if wanted is None else max(1, MOST_AT_ONCE // (wanted + 2))
        at_s, end = self.due_s, min(self._part_end, stop - 1 + most)
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
        return gap_s if self._delays is None else gap_s + self._delays.get(token, 0.0)

    def status(self) -> SequenceStatus:
        running_s, first_s = self.scheduled_s, self._first_s
        if running_s is None:
            return SequenceStatus(Phase.QUEUED, 0, 0, None, None)
        before = Phase.TRANSFER if self.request.remote_prefill else Phase.PREFILL
        phase = before if first_s is None else Phase.DECODE
        return SequenceStatus(phase, self.prompt_tokens, 0, running_s, first_s)


class SequencePool:
    """Runs at most `slots` sequences at a time, in the manner of `concurrent.futures`.

    A slot is not a thread, which would only sleep, as the timer wheel does; a thread switch would
    cost more than a short reply. A sequence starts in the submitter's own turn if a slot is free,
    else in the turn that frees one. One event loop owns the state, so locks are unnecessary.
    """

    def __init__(
        self, slots: int, lora: LoRASlots, by_priority: bool, context: SequenceContext
    ) -> None:
        self.slots = slots
        self.running = 0
        self.paused = False
        self.queue: WaitingQueue[TimedSequence] = WaitingQueue(lora, by_priority)
        self.context = context
        self.watch_queue: Callable[[float], None] | None = None
        """Receives the time when the queue may wait for something else than before."""
        self.watch_start: Callable[[TimedSequence], None] | None = None
        """Receives each sequence that got a slot."""
        self._will_fill = False

    @property
    def waiting(self) -> int:
        return len(self.queue.members)

    def sort(self, by_priority: bool) -> None:
        self.queue.sort(by_priority)

    queued = waiting

    def free(self, adapter: str | None = None) -> int:
        if self.paused or adapter is not None and not self.queue.is_ready(adapter):
            return 0
        return self.slots - self.running

    def submit(self, sequence: TimedSequence, soon: bool = False) -> None:
        """Starts `sequence` once a slot is free, but not in this turn if `soon`."""
        members = self.queue.members
        if not (soon or members) and self.free(sequence.adapter) > 0 and sequence.fits():
            self.queue.hold(sequence)
            self._run(sequence)
        else:
            self.queue.add(sequence)
        if soon:
            self._fill_later()
        elif members:
            self._fill()
        if sequence in members:
            sequence.has_waited = True
            if self.watch_queue is not None:
                self.watch_queue(self.context.clock.now())
            if sequence.adapter is not None:
                self.context.recorder.adapter_moved(sequence, sequence.adapter, "waiting")

    def leave(self, sequence: TimedSequence) -> None:
        """Takes an ended sequence out of the queue, or frees its slot and blocks for waiting ones."""
        self.queue.remove(sequence)
        if sequence.adapter is not None:
            self.context.recorder.adapter_moved(sequence, sequence.adapter, None)
        if (cache := self.context.cache) is not None:
            cache.release(sequence)
            cache.publish()
        if sequence.holds_slot:
            self._give_back(sequence)
            if self.queue.members:
                self._fill()

    def pause(self) -> None:
        """Grants no more slots; running sequences keep theirs."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._fill()

    def _fill(self) -> None:
        started, self._will_fill = 0, False
        while not self.paused and self.running < self.slots:
            if started == MOST_PER_TURN:
                self._fill_later()
                break
            sequence = self.queue.head()
            if sequence is None or not sequence.fits():
                break
            self.queue.pop(sequence)
            started += 1
            self._run(sequence)
        if self.watch_queue is not None:
            self.watch_queue(self.context.clock.now())

    def _fill_later(self) -> None:
        if not self._will_fill:
            self._will_fill = True
            self.context.wheel.call_soon(self._fill)

    def _run(self, sequence: TimedSequence) -> None:
        self.running += 1
        try:
            runs = sequence.start()
            if self.watch_start is not None:
                self.watch_start(sequence)
            if runs:
                return
        except Exception:
            log.exception("a sequence could not be started")
        self._give_back(sequence)

    def _give_back(self, sequence: TimedSequence) -> None:
        self.running -= 1
        self.queue.left(sequence)
