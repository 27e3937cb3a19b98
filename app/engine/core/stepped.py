"""Sequences in shared steps of one engine, on the live clock.

`StepLoop` computes the time of each token. One alarm in the timer wheel serves the whole engine: the alarm
advances the loop and hands out due tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from random import Random

from app.base.metrics.sequences import FinishReason
from app.engine.core.batch import Batch, Blocks, Drafts, Phase, SchedulerLimits, SequenceStatus
from app.engine.core.client import Emit
from app.engine.core.reply import Reply
from app.engine.core.request import EngineRequest
from app.engine.core.scheduler import Scheduler, WaitingQueue
from app.engine.core.sequence import CACHE_THRESHOLD, ReplySequence, SequenceContext, Submission
from app.engine.core.step_cost import CostModel, StepCost
from app.engine.core.step_loop import StepLoop
from app.engine.kvcache.block_pool import CountedBlocks
from app.engine.kvcache.prompt import Prompt
from app.engine.lora.adapters import LoRASlots
from config.profile import Profile
from config.settings import Settings

MOST_PER_TURN = 256
"""Most tokens handed out in one turn of the event loop: about two milliseconds of work."""
log = logging.getLogger(__name__)


class SteppedSequence(ReplySequence):
    """One choice in the steps of an engine; the scheduler holds this object itself."""

    __slots__ = ("_executor", "_gauge", "_late", "_promised", "_shift_s")

    def __init__(
        self,
        request: EngineRequest,
        reply: Reply,
        prompt: Prompt | None,
        context: SequenceContext,
        emit: Emit,
        submission: Submission,
        executor: StepExecutor,
    ) -> None:
        super().__init__(request, reply, prompt, context, emit, submission)
        self._executor = executor
        self._gauge: Callable[[int, str | None], None] | None = None
        """Gauge (waiting or running) that counts the sequence now."""
        self._promised = 0
        """Number of tokens received from steps."""
        self._shift_s = 0.0
        """Sum of deliberate delays so far, in seconds."""
        self._late: deque[tuple[float, int]] = deque()
        """Due times and counts of delayed tokens."""

    def status(self) -> SequenceStatus:
        if self.decodes or self.last:  # a decode in bulk has computed all of its prompt
            return SequenceStatus(
                Phase.DECODE, self.prompt_tokens, self.held, self._scheduled_s, self._first_s
            )
        waits = Phase.PREEMPTED if self.preemptions else Phase.TRANSFER if self.held else Phase.QUEUED
        phase, computed = Phase.PREFILL if self.running else waits, min(self.computed, self.prompt_tokens)
        return SequenceStatus(phase, computed, self.held, self._scheduled_s, self._first_s)

    def blocks_from(self, first: int) -> list[int]:
        return [] if self.held <= first else super().blocks_from(first)

    def enter(self, soon: bool) -> None:
        """Sends the sequence to the front end; the scheduler sees each of several prompts separately."""
        index, n = self.request.index, self.request.n
        self._executor.submit(self, apart=index > 0 and index % n == 0)

    def seen(self, at_s: float) -> bool:
        """Handles the scheduler's first sight of the sequence; returns False if no step is needed."""
        self._queued_s = at_s
        least = self.request.least_hit_rate
        if least and self._cached_share() < least:
            # Too little is cached: the reply is empty and immediate (simulator.md 13.7).
            self._empty(CACHE_THRESHOLD)
            self._scheduled_s = now_s = self._now()
            self.take(now_s, 1)
            return False
        self._stand(self._recorder.waiting)
        return True

    def _cached_share(self) -> float:
        cache = self._context.cache
        if cache is None or self.prompt is None:
            return 0.0
        return len(cache.cache.hits(self.prompt)) * cache.block_size / max(1, self.prompt_tokens)

    def admitted(self, now_s: float) -> None:
        """Notes that the sequence has a place and joins the next step."""
        if self._scheduled_s is None:
            self._scheduled_s = now_s
        self._stand(self._recorder.running)

    def preempted(self) -> None:
        if not self.over:
            self._recorder.preempted()
            self._stand(self._recorder.waiting)

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens computed by the prefill; 0 after a preemption that follows the first token."""
        return 0 if self._begun else self.prompt_tokens - self.cached_tokens - self.fetched_tokens

    def has_last(self) -> None:
        """Notes the end of the step with the last token, which frees the place."""
        self._stand(None)

    def take(self, at_s: float, count: int) -> None:
        """Emits the next `count` tokens, due at `at_s`, or postpones them by deliberate delays."""
        if self._delays is None:
            self._emit_tokens(at_s, count)
            return
        for number in range(self._promised, self._promised + count):
            self._shift_s += self._delays.get(number, 0.0)
        self._promised += count
        if not self._shift_s:
            self._emit_tokens(at_s, count)
            return
        self._late.append((at_s + self._shift_s, count))
        if len(self._late) == 1:
            self._context.wheel.add(at_s + self._shift_s, self)

    def turn(self, now_s: float) -> float | None:
        """Emits delayed tokens that are due; returns the due time of the next one."""
        while self._late and self._late[0][0] <= now_s:
            self._emit_tokens(*self._late.popleft())
            if self.over:
                return None
        return self._late[0][0] if self._late else None

    def _emit_tokens(self, at_s: float, count: int) -> None:
        take, start = self._take_token, self._position
        if take is None or count != 1 or not start or start + 1 >= self._part_end or self._part is not None:
            self._emit_parts(at_s, count)
            return
        self._position = start + 1
        self._recorder.decoded(1, at_s - self._last_s, at_s)
        self.tokens += 1
        self._last_s = at_s
        take(self._texts[start], self._ids[start], at_s)

    def _emit_parts(self, at_s: float, count: int) -> None:
        """Emits tokens part by part; an image after the last one takes its own time."""
        if not self._begun:
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

    def _stand(self, gauge: Callable[[int, str | None], None] | None) -> None:
        if self._gauge is not None:
            self._gauge(-1, self.adapter)
        if gauge is not None:
            gauge(1, self.adapter)
        self._gauge = gauge

    def _withdraw(self) -> None:
        if self._gauge is None and self.arrived:
            return  # `has_last` was called: the scheduler has dropped the sequence
        self._executor.withdraw(self)
        self._stand(None)

    def _end(self, reason: FinishReason, counted: bool = True) -> None:
        super()._end(reason, counted)
        self._late.clear()


WatchStep = Callable[[Batch[SteppedSequence], float, float], None]
"""Receives a step with its start and end times."""


class StepExecutor(StepLoop[SteppedSequence]):
    """Runs sequences in shared steps: `StepLoop` on the live clock.

    Records each step, and publishes the cache's events at its end.
    """

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
        self.slots = limits.max_num_seqs
        self.watch_step: WatchStep | None = None
        self._manager = context.cache
        counted = CountedBlocks(kvcache.kv_cache_size, kvcache.block_size, caching=False)
        blocks: Blocks[SteppedSequence] = context.cache or counted
        self._pool = counted if context.cache is None else context.cache.cache.pool.queue
        """Pool that provides `free`, the number of free blocks."""
        self._capacity = self._told_free = blocks.capacity
        self._clock, self._wheel, self._recorder = context.clock, context.wheel, context.recorder
        self._timing = context.timing
        self._queue: WaitingQueue[SteppedSequence] = WaitingQueue(lora, limits.by_priority)
        drafts = None
        if profile.speculation is not None:
            drafts = Drafts(profile.speculation.acceptance, rng)
            context.recorder.expect_drafts(drafts.drafts)
        scheduler = Scheduler(limits, blocks, self._queue, drafts)
        depth = 2 if at.async_scheduling else 1
        super().__init__(scheduler, cost or StepCost(profile.cost), profile.front, depth)
        self._in_line = 0
        """Number of unfinished sequences in the front end."""
        self._out: deque[DueTokens] = deque()
        self._alarm: Alarm | None = None
        self._due_s = inf
        """Time of the alarm."""
        self._turning = False

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def prefilling(self) -> Iterable[SteppedSequence]:
        """Sequences with unfinished prompts, as of the latest step."""
        return self.scheduler.prefilling

    @property
    def waiting(self) -> int:
        return self._in_line + len(self._queue.members) + len(self.scheduler.fetching)

    def free(self, adapter: str | None = None) -> int:
        """Returns the number of free places for sequences with this adapter."""
        ready = not self.scheduler.paused and self._queue.is_ready(adapter)
        return self.slots - len(self.scheduler.running) if ready else 0

    def pause(self) -> None:
        """Grants no more places; running sequences keep theirs."""
        self.scheduler.paused = True

    def resume(self) -> None:
        self.scheduler.paused = False
        self._look()

    def submit(self, sequence: SteppedSequence, apart: bool = False) -> None:
        """Takes a sequence into the front end; if `apart`, the scheduler sees it after earlier sequences."""
        due_s = self.send(sequence, sequence.request.arrival_s, apart)
        if (late_s := self._clock.now() - due_s) > 0:
            self._recorder.late(late_s)
        self._in_line += 1
        self._arm()

    def withdraw(self, sequence: SteppedSequence) -> None:
        """Removes a finished or aborted sequence."""
        if not sequence.arrived:
            self._in_line -= 1
            return
        self.scheduler.remove(sequence)
        if not self._turning:
            self._tell_usage()
        self._look()

    def _look(self) -> None:
        """Schedules a step if none is under way and there is work."""
        if not self.busy and not self.scheduler.idle:
            self.wake(self._clock.now())
            self._arm()

    # Called by the loop.

    def seen(self, sequence: SteppedSequence, at_s: float) -> bool:
        """Returns False for a sequence that is over or needs no step, which withdraws by itself."""
        if sequence.over:
            return False
        try:
            if not sequence.seen(at_s):
                return False
        except Exception as error:
            log.exception("what ends a sequence at once could not be handed out")
            sequence.fail(error)
            return False
        self._in_line -= 1
        return True

    def transfer_s(self, sequence: SteppedSequence) -> float:
        return self._timing.time_to_first_token(sequence.prompt_tokens, remote=True)

    def step_made(self, batch: Batch[SteppedSequence], start_s: float, end_s: float) -> None:
        if self.watch_step is not None:
            self.watch_step(batch, start_s, end_s)
        for sequence in batch.admitted:
            if not sequence.over:
                sequence.admitted(self.now_s)

    def step_over(self, batch: Batch[SteppedSequence], first_s: float, gap_s: float) -> None:
        due = DueTokens(batch, first_s)
        tokens, manager = 0, self._manager
        for sequence, count in due.tokens:
            tokens += count
            if manager is not None and sequence.running and not sequence.over:
                manager.handed_out(sequence, count)
        if manager is not None:
            manager.publish()
        for drafted, accepted in batch.drafts.values():
            self._recorder.drafted(drafted, accepted)
        for sequence in batch.ends:
            if not sequence.over:
                sequence.has_last()
        if due.tokens:
            # A prompt counts in the step of its last chunk, as in vLLM.
            for sequence in batch.prefilled:
                tokens += 0 if sequence.over else sequence.prefilled_tokens
            self._recorder.step(tokens)
        self._out.append(due)

    def _tell_usage(self) -> None:
        if (free := self._pool.free) != self._told_free:
            self._told_free = free
            self._recorder.cache_used(1.0 - free / self._capacity)

    # The alarm.

    def _arm(self) -> None:
        """Sets the alarm to the next event or due token."""
        if self._turning:
            return
        event_s = self.next_s()
        due_s = self._out[0].next_s if self._out else inf
        if event_s is not None and event_s < due_s:
            due_s = event_s
        if due_s < self._due_s:
            self._due_s = due_s
            self._alarm = Alarm(self)
            self._wheel.add(self._due_s, self._alarm)

    def rearm(self) -> None:
        self._alarm, self._due_s = None, inf
        self._arm()

    def ring(self, alarm: Alarm, now_s: float) -> float | None:
        """Handles everything due at `now_s`; returns the next due time, or None for none or a stale alarm."""
        if alarm is not self._alarm:
            return None
        self._turning = True
        try:
            due_s = self._run(now_s)
        finally:
            self._turning = False
            self._tell_usage()
        if due_s is None:
            self._alarm, self._due_s = None, inf
        else:
            self._due_s = due_s
        return due_s

    def _run(self, now_s: float) -> float | None:
        """Handles loop events and due tokens in order of time."""
        budget = MOST_PER_TURN
        while True:
            event_s = self.next_s()
            out_s = self._out[0].next_s if self._out else None
            if out_s is not None and (event_s is None or out_s <= event_s):
                if out_s > now_s or budget <= 0:
                    return out_s
                budget -= self._hand_out(now_s if event_s is None else min(now_s, event_s), budget)
            elif event_s is None or event_s > now_s or budget <= 0:
                return event_s
            else:
                self.go_on(event_s)
                budget -= 1

    def _hand_out(self, until_s: float, most: int) -> int:
        """Hands out tokens due by `until_s`, at most `most`, of the oldest step; returns their number."""
        first, count = self._out[0], 0
        while first.left and count < most and (at_s := first.next_s) <= until_s:
            sequence, tokens = first.tokens[-first.left]
            first.left -= 1
            first.next_s += self._out_s
            count += 1
            if sequence.over:
                continue
            try:
                sequence.take(at_s, tokens)
            except Exception as error:
                log.exception("a token could not be handed out")
                sequence.fail(error)
        if not first.left:
            self._out.popleft()
        return count


class DueTokens:
    """Tokens of a step, due one sequence after another."""

    __slots__ = ("left", "next_s", "tokens")

    def __init__(self, batch: Batch[SteppedSequence], first_s: float) -> None:
        counts, sequences = batch.drafts, (*batch.decodes, *batch.prefilled)
        self.tokens = [(it, 1 + counts[it][1] if it in counts else 1) for it in sequences]
        """Pairs of a sequence and its number of tokens."""
        self.left = len(self.tokens)
        self.next_s = first_s
        """Due time of the first remaining token."""


class Alarm:
    """An engine's entry in the timer wheel; only the latest alarm is valid."""

    __slots__ = ("_executor",)

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def turn(self, now_s: float) -> float | None:
        return self._executor.ring(self, now_s)

    def fail(self, error: Exception) -> None:
        self._executor.rearm()
