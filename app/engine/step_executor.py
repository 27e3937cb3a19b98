"""Runs sequences in the steps of one engine, on the live clock.

`StepLoop` says at which moment each token of a step is there. One alarm in the timer wheel serves the whole
engine: it takes the loop on, and hands out the tokens that are due.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import chain
from math import inf, nextafter
from random import Random
from typing import ParamSpec, TypeVar

from app.engine.batch import Batch, Blocks, SchedulerLimits, Speculation
from app.engine.cache_manager import KVCacheManager
from app.engine.scheduler import Scheduler
from app.engine.sequence import Runtime
from app.engine.speculation import Drafts
from app.engine.step_cost import CostModel, StepCost
from app.engine.step_loop import StepLoop
from app.engine.stepped import HashedBlocks, StepCall, StepOwner, StepQueue, StepState
from app.kvcache.counted import CountedBlocks
from app.lora.adapters import LoRASlots
from config.profile import FrontCosts, Profile
from config.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
MOST_PER_TURN = 256
"""Tokens handed out before others have their turn: about two milliseconds of work."""
WatchStep = Callable[[Batch[StepState], float, float], None]
log = logging.getLogger(__name__)


def step_executor(
    settings: Settings,
    profile: Profile,
    runtime: Runtime,
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
    blocks: Blocks[StepState] = (
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


class StepExecutor(Executor):
    """Runs sequences in the steps of one engine: `StepLoop` on the live clock.

    It tells the metrics what a step was, and the cache's events at the end of each. Calls that are submitted,
    as to any executor, wait for a place among the sequences and are made at the end of their step.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: Blocks[StepState],
        cost: CostModel,
        front: FrontCosts,
        runtime: Runtime,
        lora: LoRASlots,
        manager: KVCacheManager | None,
        speculation: Speculation | None,
        depth: int,
    ) -> None:
        """`manager` is the cache that `blocks` are of, where there is one."""
        self.slots = limits.max_num_seqs
        self.limits = limits
        self.watch_step: WatchStep | None = None
        """Is told of every step that is made, with the moments of its begin and end."""
        self.block_size = blocks.block_size
        self._blocks, self._front, self._manager = blocks, front, manager
        self._clock, self._wheel, self._recorder = runtime.clock, runtime.wheel, runtime.recorder
        self._lora = lora
        self._scheduler: Scheduler[StepState] = Scheduler(
            limits, blocks, StepQueue(lora, limits.by_priority), speculation
        )
        self._loop: StepLoop[StepState] = StepLoop(
            self._scheduler, cost, self, self, front.out_per_stream, depth, self._transfer
        )
        self._timing = runtime.timing
        if speculation is not None:
            runtime.recorder.expect_drafts(speculation.drafts)
        self._line: deque[tuple[float, StepState]] = deque()
        """Requests in the front, with the moments at which the scheduler sees them."""
        self._in_line = 0
        """Those of them that are not over."""
        self._seen_s = -inf
        self._out: deque[HandOut] = deque()
        self._alarm: Alarm | None = None
        self._due_s = inf
        """When the alarm rings."""
        self._turning = self._closed = False

    @property
    def running(self) -> int:
        """Sequences that have a place."""
        return len(self._scheduler.running)

    @property
    def prefilling(self) -> Iterable[StepState]:
        """Sequences with a part of the prompt left, after the step that was made last."""
        return self._scheduler.prefilling

    @property
    def waiting(self) -> int:
        """Sequences that have none yet."""
        return self._in_line + len(self._scheduler.waiting) + len(self._scheduler.fetching)

    def free(self, adapter: str | None = None) -> int:
        """Places that sequences with this adapter could have now."""
        ready = adapter is None or self._lora.is_ready(adapter) or self._lora.has_room()
        return self.slots - self.running if ready and not self._scheduler.paused else 0

    def pause(self) -> None:
        """Give no more places away; who has one keeps it."""
        self._scheduler.paused = True

    def resume(self) -> None:
        """Give places away again."""
        self._scheduler.paused = False
        self._look()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` at the end of a step in which it has a place. RuntimeError after `shutdown`."""
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        call: StepCall[T] = StepCall(partial(fn, *args, **kwargs), self._clock.now())
        self.enter(StepState(call, prompt_tokens=1, output_tokens=0))
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `cancel_futures` drop those that the scheduler has not seen."""
        self._closed = True
        for _, state in self._line if cancel_futures else ():
            if isinstance(state.owner, StepCall):
                state.owner.cancel()

    def enter(self, state: StepState, apart: bool = False) -> None:
        """A sequence has come; if `apart`, the scheduler sees it after those that have come before."""
        owner = state.owner
        if owner is None:
            return
        due_s = self._front.visible_s(owner.arrival_s, state.prompt_tokens)
        if (late_s := self._clock.now() - due_s) > 0:
            self._recorder.late(late_s)
        self._seen_s = max(nextafter(self._seen_s, inf) if apart else self._seen_s, due_s)
        self._line.append((self._seen_s, state))
        self._in_line += 1
        self._arm()

    def withdraw(self, state: StepState) -> None:
        """A sequence is over, perhaps before its time."""
        if not state.arrived:
            self._in_line -= 1
            return
        self._scheduler.remove(state)
        self._tell_usage()
        self._look()

    def _look(self) -> None:
        """Something has changed: if no step is under way, perhaps one can be made."""
        if not self._loop.busy and not self._scheduler.idle:
            self._loop.wake(self._clock.now())
            self._arm()

    # What the loop asks.

    def next_s(self) -> float | None:
        """See `Arrivals`."""
        return self._line[0][0] if self._line else None

    def take(self, until_s: float) -> list[StepState]:
        """See `Arrivals`."""
        taken = []
        while self._line and self._line[0][0] <= until_s:
            at_s, state = self._line.popleft()
            if state.owner is not None and self._is_seen(state.owner, at_s):
                taken.append(state)
        # What one of them says may have ended it, or others: those have withdrawn by themselves.
        taken = [state for state in taken if state.owner is not None]
        self._in_line -= len(taken)
        return taken

    def _is_seen(self, owner: StepOwner, at_s: float) -> bool:
        """Whether the scheduler is to have it. A sequence that is over withdraws by itself."""
        try:
            if owner.seen(at_s):
                return True
            if isinstance(owner, StepCall):
                self._in_line -= 1
        except Exception as error:
            log.exception("what ends a sequence at once could not be handed out")
            owner.fail(error)
        return False

    def _transfer(self, state: StepState) -> float:
        return self._timing.time_to_first_token(state.prompt_tokens, remote=True)

    def step_made(self, batch: Batch[StepState], start_s: float, end_s: float) -> None:
        """See `Outputs`."""
        if self.watch_step is not None:
            self.watch_step(batch, start_s, end_s)
        now_s = self._loop.now_s
        for state in batch.admitted:
            if state.owner is not None:
                state.owner.admitted(now_s)

    def step_over(self, batch: Batch[StepState], first_s: float, gap_s: float) -> None:
        """See `Outputs`."""
        if self._manager is not None:
            for state in chain(batch.decodes, batch.prefilled):
                self._store(state, batch.count(state))
            self._manager.end_step()
        for drafted, accepted in batch.drafts.values():
            self._recorder.drafted(drafted, accepted)
        for state in batch.ends:
            if state.owner is not None:
                state.owner.has_last()
        self._count(batch)
        self._out.append(HandOut(batch, first_s, gap_s))

    def _count(self, batch: Batch[StepState]) -> None:
        """Count a step with outputs; a prompt counts in the step of its last chunk, as in vLLM."""
        outputs = len(batch.decodes) + len(batch.prefilled)
        if not outputs:
            return
        prompts = sum(it.prompt_tokens - it.owner.cached_tokens for it in batch.prefilled if it.owner)
        more = sum(accepted for _, accepted in batch.drafts.values())
        self._recorder.step(outputs + more + prompts)

    def _store(self, state: StepState, count: int) -> None:
        """Tokens of the reply are known: a block that they fill up is told to the cache."""
        state.handed += count
        known = state.prompt_tokens + state.handed - 1
        if state.running and state.blocks is not None and state.owner is not None:
            full = known // self.block_size * self.block_size
            if full > state.prompt_tokens + state.stored - 1:
                state.blocks.write(state.owner.written(state.handed)[state.stored :])
                state.stored = state.handed

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
                self._tell_usage()
                budget -= 1

    def _next_out(self) -> float | None:
        return self._out[0].next_s if self._out else None

    def _hand_out(self, until_s: float, most: int) -> int:
        """Hand out what is due by then, `most` tokens of the first step at the most; how many."""
        first = self._out[0]
        count = 0
        while first.left and count < most and (at_s := first.next_s) <= until_s:
            state, tokens = first.pop()
            count += 1
            if (owner := state.owner) is None:
                continue
            try:
                owner.token(at_s, tokens)
            except Exception as error:
                log.exception("a token could not be handed out")
                owner.fail(error)
        if not first.left:
            self._out.popleft()
        return count


class HandOut:
    """The tokens of a step that are not handed out yet."""

    __slots__ = ("_batch", "_gap_s", "_place", "_streams", "left", "next_s")

    def __init__(self, batch: Batch[StepState], first_s: float, gap_s: float) -> None:
        self._streams = [*batch.decodes, *batch.prefilled]
        self._batch = batch
        self._gap_s = gap_s
        self._place = 0
        self.left = len(self._streams)
        self.next_s = first_s

    def pop(self) -> tuple[StepState, int]:
        """Whose turn it is, and how many tokens it gets."""
        state = self._streams[self._place]
        self._place += 1
        self.left -= 1
        self.next_s += self._gap_s
        return state, self._batch.count(state)


class Alarm:
    """What stands in the timer wheel for a whole engine; only the latest one rings."""

    __slots__ = ("_executor",)

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def turn(self, now_s: float) -> float | None:
        return self._executor.ring(self, now_s)

    def fail(self, error: Exception) -> None:
        """The wheel has written it down; the others go on."""
        self._executor.rearm()
