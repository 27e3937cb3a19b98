"""Sequences in shared steps of one engine, on the live clock.

`StepLoop` computes the time of each token. One entry in the timer wheel serves the whole engine: its turns
advance the loop and hand out due tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import repeat
from math import inf
from random import Random

from msgspec import Struct

from app.engine.core.batch import Batch, Blocks, Drafts, Phase, SchedulerLimits, SequenceStatus
from app.engine.core.request import EngineRequest, Reply
from app.engine.core.scheduler import Scheduler, WaitingQueue
from app.engine.core.sequence import Handle
from app.engine.core.step_loop import CostModel, StepCost, StepLoop
from app.engine.core.timeline import ReplySequence, SequenceContext
from app.engine.kvcache.block_pool import CountedBlocks
from app.engine.lora import LoRASlots
from config.profile import Profile
from config.settings import Settings

MOST_PER_TURN = 256
"""Most tokens handed out in one turn of the event loop: about two milliseconds of work."""
EARLY_S = 2e-6
"""Most time that the wheel is too early by rounding, in seconds."""
log = logging.getLogger(__name__)


class SteppedSequence(ReplySequence):
    """One choice in the steps of an engine; the scheduler holds this object itself."""

    __slots__ = ("_late", "_promised", "_shift_s")
    fills_cache = False

    def __init__(self, executor: StepExecutor, request: EngineRequest, reply: Reply, handle: Handle) -> None:
        super().__init__(executor.context, request, reply, handle, executor.leave)
        self._promised = 0
        """Number of tokens received from steps, if the reply has delays."""
        self._shift_s = 0.0
        """Sum of deliberate delays so far, in seconds."""
        self._late: deque[tuple[float, int]] = deque()
        """Due times and counts of delayed tokens."""

    def status(self) -> SequenceStatus:
        phase, computed = Phase.DECODE, self.prompt_tokens  # a decode in bulk has computed all of its prompt
        if not (self.decodes or self.last):
            waits = Phase.PREEMPTED if self.preemptions else Phase.TRANSFER if self.held else Phase.QUEUED
            phase, computed = Phase.PREFILL if self.running else waits, min(self.computed, computed)
        return SequenceStatus(phase, computed, self.held, self.scheduled_s, self._first_s)

    def hand_out(self, at_s: float, count: int) -> None:
        """Takes `count` tokens, due at `at_s`; ends with an error of the writer."""
        try:
            self.take(at_s, count)
        except Exception as error:
            log.exception("a token could not be handed out")
            self.fail(error)

    def preempted(self) -> None:
        if not self.over:
            self._recorder.preempted()
            if self.adapter is not None:
                self._recorder.adapter_moved(self, self.adapter, "waiting")

    def take(self, at_s: float, count: int) -> None:
        """Emits the next `count` tokens, due at `at_s`, or postpones them by deliberate delays."""
        take, start = self._take_token, self._position
        if take is not None and count == 1 and start and start + 1 < self._part_end and self._part is None:
            self._position = start + 1
            self._recorder.decoded(1, at_s - self._last_s, at_s)
            self.tokens += 1
            self._last_s = at_s
            take(self._texts[start], self._ids[start], at_s)
            return
        if self._delays is not None:
            for number in range(self._promised, self._promised + count):
                self._shift_s += self._delays.get(number, 0.0)
            self._promised += count
            if self._shift_s:
                self._late.append((at_s + self._shift_s, count))
                if len(self._late) == 1:
                    self._context.wheel.add(at_s + self._shift_s, self)
                return
        self._emit_parts(at_s, count)

    def turn(self, now_s: float) -> float | None:
        """Emits delayed tokens that are due; returns the due time of the next one."""
        while self._late and not self.over and self._late[0][0] <= now_s:
            self._emit_parts(*self._late.popleft())
        return self._late[0][0] if self._late and not self.over else None

    def _emit_parts(self, at_s: float, count: int) -> None:
        """Emits tokens part by part; an image after the last one takes its own time."""
        if not self.begun:
            self._begin(at_s)
        while not self.over:
            part, stop, image = self._part, min(self._position + count, self._part_end), False
            count -= stop - self._position
            if stop == self._part_end and stop < len(self._texts):
                image = self._to_next_part()
            if not self._emit_until(stop, at_s, part):
                return
            if image:
                due_s = at_s + self._context.timing.image()
                self._late.append((due_s, 1))
                self._context.wheel.add(due_s, self)
            if image or count <= 0:
                return


class DueTokens(Struct):
    """Tokens of a step, due one sequence after another; `next_s` is the time of the first one left."""

    tokens: list[tuple[SteppedSequence, int]]
    left: int
    next_s: float


class StepExecutor(StepLoop[SteppedSequence]):
    """`StepLoop` on the live clock: records each step, and publishes the cache's events at its end."""

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        context: SequenceContext,
        lora: LoRASlots,
        rng: Random,
        cost: CostModel | None = None,
    ) -> None:
        """`cost` replaces the profile's cost model. `rng` decides which drafts are right."""
        scheduling, at, kvcache = settings.scheduling, settings.steps, settings.kvcache
        self.limits = limits = SchedulerLimits(
            max_num_seqs=scheduling.max_num_seqs,
            max_num_batched_tokens=at.max_num_batched_tokens,
            long_prefill_token_threshold=at.long_prefill_token_threshold,
            enable_chunked_prefill=at.enable_chunked_prefill,
            by_priority=scheduling.scheduling_policy == "priority",
        )
        self.context, self._cache = context, context.cache
        counted = CountedBlocks(kvcache.kv_cache_size, kvcache.block_size, caching=False)
        self.blocks: Blocks[SteppedSequence] = context.cache or counted
        self._clock, self._wheel, self._recorder = context.clock, context.wheel, context.recorder
        self._timing = context.timing
        self._queue: WaitingQueue[SteppedSequence] = WaitingQueue(lora, limits.by_priority)
        drafts = None
        if profile.speculation is not None:
            drafts = Drafts(profile.speculation.acceptance, rng)
            context.recorder.expect_drafts(drafts.drafts)
        scheduler = Scheduler(limits, self.blocks, self._queue, drafts)
        depth = 2 if at.async_scheduling else 1
        super().__init__(scheduler, cost or StepCost(profile.cost), profile.front, depth)
        self._in_line = 0
        """Number of unfinished sequences in the front end."""
        self._out: deque[DueTokens] = deque()
        self._alarm_s = inf
        """Time of the next turn; an entry of the wheel that comes earlier is stale."""
        self._turning = False

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def queued(self) -> int:
        """Number of waiting sequences that the scheduler has seen."""
        return len(self._queue.members) + len(self.scheduler.fetching)

    @property
    def waiting(self) -> int:
        return self._in_line + self.queued

    def free(self, adapter: str | None = None) -> int:
        if self.scheduler.paused or adapter is not None and not self._queue.is_ready(adapter):
            return 0
        return self.limits.max_num_seqs - len(self.scheduler.running)

    def pause(self) -> None:
        self.scheduler.paused = True

    def resume(self) -> None:
        self.scheduler.paused = False
        self._look()

    def submit(self, sequence: SteppedSequence, soon: bool = False) -> None:
        """Takes a sequence into the front end; the scheduler sees each of several prompts separately."""
        request = sequence.request
        apart = request.index > 0 and request.index % request.n == 0
        due_s = self.send(sequence, request.arrival_s, apart)
        if (late_s := self._clock.now() - due_s) > 0:
            self._recorder.late(late_s)
        self._in_line += 1
        self._arm()

    def leave(self, sequence: SteppedSequence) -> None:
        if not sequence.arrived:
            self._in_line -= 1
            return
        if sequence.adapter is not None:
            self._recorder.adapter_moved(sequence, sequence.adapter, None)
        if self.scheduler.remove(sequence):
            self._look()

    def _look(self) -> None:
        if not self._under_way and not self.scheduler.idle:
            self.wake(self._clock.now())
            self._arm()

    def seen(self, sequence: SteppedSequence, at_s: float) -> bool:
        """Returns False for a sequence that is over, or ends as too little is cached (simulator.md 13.7)."""
        if sequence.over:
            return False
        sequence.queued_s = at_s
        threshold, cache, tokens = sequence.request.cache_hit_threshold, self._cache, sequence.prompt_tokens
        if threshold:
            found = 0 if cache is None else cache.find(sequence, tokens) * cache.block_size
            if found / max(1, tokens) < threshold:
                sequence.scheduled_s = now_s = self._clock.now()
                sequence.empty()
                sequence.hand_out(now_s, 1)
                return False
        if sequence.adapter is not None:
            self._recorder.adapter_moved(sequence, sequence.adapter, "waiting")
        self._in_line -= 1
        return True

    def transfer_s(self, sequence: SteppedSequence) -> float:
        return self._timing.time_to_first_token(sequence.prompt_tokens, remote=True)

    def admitted(self, batch: Batch[SteppedSequence]) -> None:
        for sequence in batch.admitted:
            if sequence.over:
                continue
            if sequence.scheduled_s is None:
                sequence.scheduled_s = self.now_s
            if sequence.adapter is not None:
                self._recorder.adapter_moved(sequence, sequence.adapter, "running")

    def step_over(self, batch: Batch[SteppedSequence], first_s: float, gap_s: float) -> None:
        cache, recorder, drafts = self._cache, self._recorder, batch.drafts
        due = list(zip([*batch.decodes, *batch.prefilled], repeat(1), strict=False))
        if drafts:
            due = [(it, 1 + drafts[it][1] if it in drafts else 1) for it, _ in due]
            for drafted, accepted in drafts.values():
                recorder.drafted(drafted, accepted)
        if cache is not None:
            cache.step_over([it for it in due if it[0].running and not it[0].over])
        for sequence in batch.ends:
            if sequence.adapter is not None and not sequence.over:
                recorder.adapter_moved(sequence, sequence.adapter, None)
        if due:
            tokens = sum([count for _, count in due]) if drafts else len(due)
            for sequence in batch.prefilled:
                # A prompt counts in the step of its last chunk, as in vLLM; not after a first token.
                if not sequence.over and not sequence.begun:
                    tokens += sequence.prompt_tokens - sequence.cached_tokens - sequence.fetched_tokens
            recorder.step(tokens)
            self._out.append(DueTokens(due, len(due), first_s))

    def _arm(self) -> None:
        due_s = min(self.next_s, self._out[0].next_s) if self._out else self.next_s
        if due_s < self._alarm_s and not self._turning:
            self._alarm_s = due_s
            self._wheel.add(due_s, self)

    def fail(self, error: Exception) -> None:
        self._alarm_s = inf
        self._arm()

    def turn(self, now_s: float) -> float | None:
        """Handles loop events and due tokens in order of time; returns the next due time, or None."""
        if now_s < self._alarm_s - EARLY_S:
            return None  # a stale entry
        self._turning, budget, out = True, MOST_PER_TURN, self._out
        try:
            while True:
                if out and (out_s := out[0].next_s) <= self.next_s:
                    if out_s > now_s or budget <= 0:
                        self._alarm_s = out_s
                        break
                    budget -= self._hand_out(min(now_s, self.next_s), budget)
                elif self.next_s > now_s or budget <= 0:
                    self._alarm_s = self.next_s
                    break
                else:
                    self.go_on()
                    budget -= 1
        finally:
            self._turning = False
        return None if self._alarm_s == inf else self._alarm_s

    def _hand_out(self, until_s: float, most: int) -> int:
        """Hands out tokens due by `until_s`, at most `most`, of the oldest step; returns their number."""
        first, count = self._out[0], 0
        while first.left and count < most and (at_s := first.next_s) <= until_s:
            sequence, tokens = first.tokens[-first.left]
            first.left -= 1
            first.next_s += self._out_s
            count += 1
            if not sequence.over:
                sequence.hand_out(at_s, tokens)
        if not first.left:
            self._out.popleft()
        return count
