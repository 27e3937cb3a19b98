"""Runs sequences in the steps of one engine, on the live clock.

`StepLoop` computes at which moment each token of a step is there. One alarm in the timer wheel serves the
whole engine: it takes the loop on, and hands out the tokens that are due.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from math import inf, nextafter
from random import Random

from app.engine.batch import Batch, Blocks, SchedulerLimits, Speculation
from app.engine.cache_manager import KVCacheManager
from app.engine.scheduler import Scheduler
from app.engine.sequence import SequenceContext
from app.engine.speculation import Drafts
from app.engine.step_cost import CostModel, StepCost
from app.engine.step_loop import StepLoop
from app.engine.stepped import HashedBlocks, SteppedSequence
from app.engine.waiting import WaitingQueue
from app.kvcache.counted import CountedBlocks
from app.lora.adapters import LoRASlots
from config.profile import FrontCosts, Profile
from config.settings import Settings

MOST_PER_TURN = 256
"""Most tokens handed out in one turn of the event loop: about two milliseconds of work."""
WatchStep = Callable[[Batch[SteppedSequence], float, float], None]
log = logging.getLogger(__name__)


def step_executor(
    settings: Settings,
    profile: Profile,
    runtime: SequenceContext,
    lora: LoRASlots,
    cache: KVCacheManager | None,
    rng: Random,
    cost: CostModel | None = None,
) -> StepExecutor:
    """The executor that `settings` and `profile` describe. `cost` instead of the profile's, if given."""
    scheduling, at, kvcache = settings.scheduling, settings.steps, settings.kvcache
    limits = SchedulerLimits(
        max_num_seqs=scheduling.max_num_seqs,
        max_num_batched_tokens=at.max_num_batched_tokens,
        long_prefill_token_threshold=at.long_prefill_token_threshold,
        enable_chunked_prefill=at.enable_chunked_prefill,
        by_priority=scheduling.scheduling_policy == "priority",
    )
    blocks: Blocks[SteppedSequence] = (
        CountedBlocks(kvcache.kv_cache_size, kvcache.block_size, caching=False)
        if cache is None
        else HashedBlocks(cache)
    )
    rates = profile.speculation
    return StepExecutor(
        limits,
        blocks,
        cost or StepCost(profile.cost),
        profile.front,
        runtime,
        lora,
        cache,
        None if rates is None else Drafts(rates.acceptance, rng),
        2 if at.async_scheduling else 1,
    )


class StepExecutor:
    """Runs sequences in the steps of one engine: `StepLoop` on the live clock.

    It counts each step, and publishes the cache's events at its end.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[SteppedSequence],
        cost: CostModel,
        front: FrontCosts,
        context: SequenceContext,
        lora: LoRASlots,
        manager: KVCacheManager | None,
        speculation: Speculation | None,
        depth: int,
    ) -> None:
        """`manager` is the cache that `blocks` are of, where there is one."""
        self.slots = limits.max_num_seqs
        self.limits = limits
        self.watch_step: WatchStep | None = None
        """Called with every step that is made, and the moments of its begin and end."""
        self._blocks, self._front, self._manager = blocks, front, manager
        self._clock, self._wheel, self._recorder = context.clock, context.wheel, context.recorder
        self._queue: WaitingQueue[SteppedSequence] = WaitingQueue(lora, limits.by_priority)
        self._scheduler = Scheduler(limits, blocks, self._queue, speculation)
        self._loop: StepLoop[SteppedSequence] = StepLoop(
            self._scheduler, cost, self, self, front.out_per_stream, depth, self._transfer
        )
        self._timing = context.timing
        if speculation is not None:
            context.recorder.expect_drafts(speculation.drafts)
        self._line: deque[tuple[float, SteppedSequence]] = deque()
        """Sequences in the front, with the moments at which the scheduler sees them."""
        self._in_line = 0
        """Those of them that are not over."""
        self._seen_s = -inf
        self._out: deque[DueTokens] = deque()
        self._alarm: Alarm | None = None
        self._due_s = inf
        """When the alarm rings."""
        self._turning = False

    @property
    def running(self) -> int:
        """Sequences that have a place."""
        return len(self._scheduler.running)

    @property
    def prefilling(self) -> Iterable[SteppedSequence]:
        """Sequences with a part of the prompt left, after the step that was made last."""
        return self._scheduler.prefilling

    @property
    def waiting(self) -> int:
        """Sequences without a place."""
        return self._in_line + len(self._queue.members) + len(self._scheduler.fetching)

    def free(self, adapter: str | None = None) -> int:
        """Returns the places that sequences with this adapter could have now."""
        ready = not self._scheduler.paused and self._queue.is_ready(adapter)
        return self.slots - len(self._scheduler.running) if ready else 0

    def pause(self) -> None:
        """Gives no more places away; running sequences keep theirs."""
        self._scheduler.paused = True

    def resume(self) -> None:
        """Gives places away again."""
        self._scheduler.paused = False
        self._look()

    def submit(self, sequence: SteppedSequence, apart: bool = False) -> None:
        """Takes a sequence into the front; if `apart`, the scheduler sees it after those before it."""
        due_s = self._front.visible_s(sequence.request.arrival_s, sequence.prompt_tokens)
        if (late_s := self._clock.now() - due_s) > 0:
            self._recorder.late(late_s)
        self._seen_s = max(nextafter(self._seen_s, inf) if apart else self._seen_s, due_s)
        self._line.append((self._seen_s, sequence))
        self._in_line += 1
        self._arm()

    def withdraw(self, sequence: SteppedSequence) -> None:
        """Takes out a sequence that is over, perhaps before its time."""
        if not sequence.arrived:
            self._in_line -= 1
            return
        self._scheduler.remove(sequence)
        if not self._turning:
            self._tell_usage()
        self._look()

    def _look(self) -> None:
        """Makes a step where none is under way, and something has changed."""
        if not self._loop.busy and not self._scheduler.idle:
            self._loop.wake(self._clock.now())
            self._arm()

    # What the loop asks.

    def next_s(self) -> float | None:
        """See `Arrivals`."""
        return self._line[0][0] if self._line else None

    def take(self, until_s: float) -> list[SteppedSequence]:
        """See `Arrivals`."""
        taken: list[SteppedSequence] = []
        while self._line and self._line[0][0] <= until_s:
            at_s, sequence = self._line.popleft()
            if not sequence.over and self._is_seen(sequence, at_s):
                taken.append(sequence)
        if taken:
            # Outputs of one may have ended it, or others: those have withdrawn by themselves.
            taken = [sequence for sequence in taken if not sequence.over]
            self._in_line -= len(taken)
        return taken

    def _is_seen(self, sequence: SteppedSequence, at_s: float) -> bool:
        """Whether the scheduler is to have it. A sequence that is over withdraws by itself."""
        try:
            return sequence.seen(at_s)
        except Exception as error:
            log.exception("what ends a sequence at once could not be handed out")
            sequence.fail(error)
        return False

    def _transfer(self, sequence: SteppedSequence) -> float:
        return self._timing.time_to_first_token(sequence.prompt_tokens, remote=True)

    def step_made(self, batch: Batch[SteppedSequence], start_s: float, end_s: float) -> None:
        """See `Outputs`."""
        if self.watch_step is not None:
            self.watch_step(batch, start_s, end_s)
        for sequence in batch.admitted:
            if not sequence.over:
                sequence.admitted(self._loop.now_s)

    def step_over(self, batch: Batch[SteppedSequence], first_s: float, gap_s: float) -> None:
        """See `Outputs`."""
        due = DueTokens(batch, first_s, gap_s)
        if self._manager is not None:
            for sequence, count in due.tokens:
                sequence.store(count, self._blocks.block_size)
            self._manager.publish()
        for drafted, accepted in batch.drafts.values():
            self._recorder.drafted(drafted, accepted)
        for sequence in batch.ends:
            if not sequence.over:
                sequence.has_last()
        if due.tokens:
            # A prompt counts in the step of its last chunk, as in vLLM.
            prompts = sum([it.prompt_tokens - it.cached_tokens for it in batch.prefilled if not it.over])
            self._recorder.step(sum([count for _, count in due.tokens]) + prompts)
        self._out.append(due)

    def _tell_usage(self) -> None:
        self._recorder.cache_used(1.0 - self._blocks.free / self._blocks.capacity)

    # The alarm.

    def _arm(self) -> None:
        """Have the alarm ring when the next thing is due."""
        if self._turning:
            return
        moments = [it for it in (self._loop.next_s(), self._next_out()) if it is not None]
        if moments and min(moments) < self._due_s:
            self._due_s = min(moments)
            self._alarm = Alarm(self)
            self._wheel.add(self._due_s, self._alarm)

    def rearm(self) -> None:
        """The alarm was lost."""
        self._alarm, self._due_s = None, inf
        self._arm()

    def ring(self, alarm: Alarm, now_s: float) -> float | None:
        """Do what is due at `now_s`; when the next thing is; None for none, or an alarm out of date."""
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
        """In order of their moments: events of the loop, and tokens that are due."""
        budget = MOST_PER_TURN
        while True:
            event_s, out_s = self._loop.next_s(), self._next_out()
            if out_s is not None and (event_s is None or out_s <= event_s):
                if out_s > now_s or budget <= 0:
                    return out_s
                budget -= self._hand_out(now_s if event_s is None else min(now_s, event_s), budget)
            elif event_s is None or event_s > now_s or budget <= 0:
                return event_s
            else:
                self._loop.go_on(event_s)
                budget -= 1

    def _next_out(self) -> float | None:
        return self._out[0].next_s if self._out else None

    def _hand_out(self, until_s: float, most: int) -> int:
        """Hands out what is due by then, at most `most` tokens of the first step; returns how many."""
        first = self._out[0]
        count = 0
        while first.left and count < most and (at_s := first.next_s) <= until_s:
            sequence, tokens = first.pop()
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
    """The tokens of a step, due one sequence after another: at `first_s`, and `gap_s` seconds apart."""

    __slots__ = ("_gap_s", "left", "next_s", "tokens")

    def __init__(self, batch: Batch[SteppedSequence], first_s: float, gap_s: float) -> None:
        counts = batch.drafts
        self.tokens = [
            (it, 1 + counts[it][1] if it in counts else 1) for it in (*batch.decodes, *batch.prefilled)
        ]
        """Sequences, and how many tokens each gets."""
        self._gap_s = gap_s
        self.left = len(self.tokens)
        self.next_s = first_s

    def pop(self) -> tuple[SteppedSequence, int]:
        """Returns the next sequence, and how many tokens it gets."""
        self.left -= 1
        self.next_s += self._gap_s
        return self.tokens[-self.left - 1]


class Alarm:
    """Stands in the timer wheel for a whole engine; only the latest one rings."""

    __slots__ = ("_executor",)

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def turn(self, now_s: float) -> float | None:
        return self._executor.ring(self, now_s)

    def fail(self, error: Exception) -> None:
        """Goes on with the others: the wheel has logged the error."""
        self._executor.rearm()
