"""Steps of an engine: what each costs, and when it begins and ends (step model of
docs/fidelity.md).

`StepLoop` is driven by the caller's time: it handles all events due up to a moment, each at its own
moment. A late call, as from a live timer, does not change the result. The server and the offline
simulation therefore agree.

`StepExecutor` is the loop on the live clock. One entry in the timer wheel serves the whole engine:
its turns advance the loop and hand out due tokens.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from heapq import heappop, heappush
from itertools import repeat
from math import exp, inf, nextafter
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from app.engine.core.batch import Batch, Blocks, Drafts, LoRASlots, S, SchedulerLimits
from app.engine.core.scheduler import PREFILL_SHARE, Scheduler, WaitingQueue
from app.engine.kvcache.block_pool import CountedBlocks
from config.settings import Settings

if TYPE_CHECKING:
    from app.engine.core.sequence import SequenceContext, SteppedSequence
    from config.profile import CostConstants, FrontCosts, Profile

TILE_ROWS = 128
"""Rows of a matrix product that a device computes together."""


class CostModel(Protocol):
    """Cost of steps: `StepCost`, or a plugin's own class."""

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """See `StepCost.seconds`. Called once per step, in order; must not wait."""


class StepCost:
    """Computes the cost of consecutive steps. Prefill soon after prefill is slower."""

    def __init__(self, constants: CostConstants) -> None:
        self._constants = constants
        # Few numbers of tokens and of sequences occur.
        self._gemm, self._outputs = (
            cache(self._products),
            cache(partial(between, constants.outputs)),
        )
        self._heat = 0.0
        self._heated_s = 0.0

    def seconds(self, batch: Batch[S], start_s: float, idle: bool) -> float:
        """Returns the cost of `batch` from `start_s` on; `idle` if the step before had ended by
        then.
        """
        its = self._constants
        gemm = self._gemm(batch.tokens)
        context: float = batch.context
        pairs, decodes = batch.attention, batch.sequences - batch.prefills
        if its.window:
            share, window = its.window_share, its.window
            context -= share * (context - min(context, window * decodes))
            pairs -= share * (pairs - min(pairs, window * (batch.tokens - decodes)))
        cost = its.base + gemm + its.per_context * context + its.per_sequence * batch.sequences
        if its.outputs:
            cost += self._outputs(batch.sequences)
        if decodes:
            cost += its.decodes + its.per_decode * decodes
        if batch.prefills:
            attention = its.prefills + its.per_attention * pairs
            cost += attention + its.mixed_context * context
            cost = self._heated(cost, gemm + attention, start_s)
        return cost + its.wake if idle else cost

    def _products(self, tokens: int) -> float:
        """Returns the cost of the matrix products: of the table, or the p-norm of reading weights
        and computing, plus spill.
        """
        its = self._constants
        if its.products:
            return its.products_scale * between(its.products, tokens)
        rows = tokens + its.tile * (-tokens % TILE_ROWS)
        reading, computing = its.weights, its.per_token * rows
        if its.expert_weights:
            reading += its.expert_weights * (1 - (1 - its.expert_share) ** tokens)
        most = max(reading, computing)
        if not most:
            return its.spill * tokens * tokens
        norm = most * ((reading / most) ** its.p + (computing / most) ** its.p) ** (1 / its.p)
        return float(norm + its.spill * tokens * tokens)

    def _heated(self, cost: float, computing: float, start_s: float) -> float:
        """Returns the cost of a step with prefill at the device's current heat, and heats the
        device.
        """
        tau, slowdown = self._constants.tau, self._constants.slowdown
        if not slowdown or not cost:
            return cost
        cold = 1.0 - self._heat * exp((self._heated_s - start_s) / tau)
        x = cost / tau
        cost += slowdown * computing * (1.0 - cold * (1.0 - exp(-x)) / x)
        self._heat = 1.0 - cold * exp(-cost / tau)
        self._heated_s = start_s + cost
        return cost


class PrefillTime:
    """Cuts prompts by time, as the real engine does (docs/llm.md, "Long prompts"); the costs are
    known.
    """

    def __init__(self, scheduler: Scheduler[S], constants: CostConstants, target_s: float) -> None:
        self._scheduler, self._target_s = scheduler, target_s
        self._cost = StepCost(replace(constants, slowdown=0.0))

    def __call__(self) -> int:
        """Returns the most prompt tokens of the next step."""
        scheduler = self._scheduler
        most = scheduler.limits.max_num_batched_tokens
        if not scheduler.prefilling and not scheduler.waiting.members:
            return most
        count, context = scheduler.decoding
        start = scheduler.prefilling[0].computed if scheduler.prefilling else 0

        def seconds(tokens: int) -> float:
            prefills, pairs = bool(tokens), tokens * (start + tokens / 2)
            step: Batch[Any] = Batch(
                count + tokens, count + prefills, context, pairs, int(prefills)
            )
            return self._cost.seconds(step, 0.0, False)

        target_s = max(self._target_s, (1 + PREFILL_SHARE) * seconds(0))
        return 1 + bisect_right(range(2, most + 1), target_s, key=seconds)


WatchStep: TypeAlias = Callable[[Batch[S], float, float], None]


def between(points: Sequence[tuple[int, float]], count: int) -> float:
    """Returns the value at `count`, linear between the points and beyond the last two."""
    if count <= points[0][0] or len(points) == 1:
        return points[0][1]
    at = min(max(1, bisect_left(points, count, key=lambda point: point[0])), len(points) - 1)
    (low, first), (high, last) = points[at - 1], points[at]
    return first + (last - first) * (count - low) / (high - low)


class StepLoop(Generic[S]):
    """Keeps at most `depth` steps under way: two with vLLM's async scheduling, one without.

    Subclasses handle the events `seen`, `step_made` and `step_over`. All moments are in seconds.
    """

    def __init__(
        self, scheduler: Scheduler[S], cost: CostModel, front: FrontCosts, depth: int = 2
    ) -> None:
        self.scheduler = scheduler
        self.now_s = -inf
        self.next_s = inf
        """Time of the next event, inf without one.

        Arrivals count only while no step is under way.
        """
        self.steps = 0
        self.line: deque[tuple[float, S]] = deque()
        """Sequences in the front end, with the times at which the scheduler sees them."""
        self._front = front
        self._cost = cost
        self._out_s = front.out_per_stream
        self._depth = depth
        self._under_way: deque[tuple[float, Batch[S]]] = deque()
        """End time and batch of each step under way."""
        self._end_s = -inf
        """End time of the latest step."""
        self._handed_out_s = -inf
        """Time at which the last token of earlier steps is handed out."""
        self.transfers: list[tuple[float, int, S]] = []
        """A heap: arrival time of each remote prefill's cache, arrival number, sequence."""
        self._seen_s = -inf
        self.watch_step: WatchStep[S] | None = None
        """Receives each new step, with its start and its end in seconds."""
        self.watch_stall: Callable[[], None] | None = None
        """Called when no step could be made."""

    def seen(self, sequence: S, at_s: float) -> bool:
        """Called when the scheduler would see a sequence; returns whether to schedule it."""
        return True

    def transfer_s(self, sequence: S) -> float:
        return 0.0

    def admitted(self, batch: Batch[S]) -> None:
        """Called for each new step that admits sequences."""

    def step_over(self, batch: Batch[S], first_s: float, gap_s: float) -> None:
        """Called when a step's tokens are ready; stream j gets its token at `first_s + j * gap_s`."""
        raise NotImplementedError

    def send(self, sequence: S, arrival_s: float, apart: bool = False) -> float:
        """Takes a sequence, seen after earlier ones if `apart`; returns when it would be visible
        alone.
        """
        due_s = arrival_s + self._front.front + self._front.front_per_token * sequence.prompt_tokens
        self._seen_s = max(nextafter(self._seen_s, inf) if apart else self._seen_s, due_s)
        self.line.append((self._seen_s, sequence))
        self.wake(self._seen_s)
        return due_s

    def wake(self, at_s: float) -> None:
        """Checks at `at_s` whether a step can be made, if none is under way then."""
        if at_s < self.next_s and not self._under_way:
            self.next_s = at_s

    def advance(self, now_s: float) -> float:
        """Handles all events due by `now_s`; returns the time of the next event, or inf."""
        while self.next_s <= now_s and self.next_s < inf:
            self.go_on()
        return self.next_s

    def go_on(self) -> None:
        self.now_s = now_s = max(self.next_s, self.now_s)
        scheduler, line, under_way = self.scheduler, self.line, self._under_way
        if under_way:
            end_s, over = under_way.popleft()
            first_s = max(end_s, self._handed_out_s) + self._out_s
            self._handed_out_s = (
                first_s + (len(over.decodes) + len(over.prefilled) - 1) * self._out_s
            )
            self.step_over(over, first_s, self._out_s)
            scheduler.complete(over)
        while len(under_way) < self._depth:
            while line and line[0][0] <= now_s:
                at_s, sequence = line.popleft()
                if self.seen(sequence, at_s):
                    scheduler.waiting.add(sequence)
            while self.transfers and self.transfers[0][0] <= now_s:
                scheduler.fetched(heappop(self.transfers)[2])
            fetching = len(scheduler.fetching)
            batch = scheduler.schedule()
            for sequence in scheduler.fetching[fetching:]:
                heappush(
                    self.transfers, (now_s + self.transfer_s(sequence), sequence.arrived, sequence)
                )
            if batch is None:
                if self.watch_stall is not None:
                    self.watch_stall()
                break
            start_s = max(now_s, self._end_s)
            self._end_s = end_s = start_s + self._cost.seconds(batch, start_s, self._end_s <= now_s)
            under_way.append((end_s, batch))
            self.steps += 1
            if self.watch_step is not None:
                self.watch_step(batch, start_s, end_s)
            if batch.admitted:
                self.admitted(batch)
        if under_way:
            self.next_s = under_way[0][0]
        else:
            self.next_s = line[0][0] if line else inf
            if self.transfers and self.transfers[0][0] < self.next_s:
                self.next_s = self.transfers[0][0]


MOST_PER_TURN = 256
"""Most tokens handed out in one turn of the event loop: about two milliseconds of work."""
EARLY_S = 2e-6
"""Most time that the wheel is too early by rounding, in seconds."""
log = logging.getLogger(__name__)


class DueTokens(Struct):
    """Tokens of a step, due one sequence after another; `next_s` is the time of the first one left."""

    tokens: list[tuple[SteppedSequence, int]]
    left: int
    next_s: float


class StepExecutor(StepLoop["SteppedSequence"]):
    """`StepLoop` on the live clock:

    records each step, and publishes the cache's events at its end.
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
        if profile.engine.engine_step_time:
            scheduler.prefill_limit = PrefillTime(
                scheduler, profile.cost, profile.engine.engine_step_time
            )
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
        return self._in_line + len(self._queue.members) + len(self.scheduler.fetching)

    def sort(self, by_priority: bool) -> None:
        """Sets the order of waiting sequences, and of preemptions."""
        self._queue.sort(by_priority)
        self.limits = self.scheduler.limits = replace(self.limits, by_priority=by_priority)

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
        """Takes a sequence into the front end; the scheduler sees each of several prompts
        separately.
        """
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
        """Returns False for a sequence that is over, or ends as too little is cached (simulator.md
        13.7).
        """
        if sequence.over:
            return False
        sequence.queued_s = at_s
        threshold, cache, tokens = (
            sequence.request.cache_hit_threshold,
            self._cache,
            sequence.prompt_tokens,
        )
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
                recorder.drafted(drafted, Counter(range(accepted)))
        if cache is not None:
            cache.step_over([it for it in due if it[0].running and not it[0].over])
        for sequence in batch.ends:
            if sequence.adapter is not None and not sequence.over:
                recorder.adapter_moved(sequence, sequence.adapter, None)
        if due:
            tokens = sum([count for _, count in due]) if drafts else len(due)
            for sequence in batch.prefilled:
                # A prompt counts in the step of its last chunk, as in vLLM; not after a first
                # token.
                if not sequence.over and not sequence.begun:
                    tokens += (
                        sequence.prompt_tokens - sequence.cached_tokens - sequence.fetched_tokens
                    )
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
        """Hands out tokens due by `until_s`, at most `most`, of the oldest step; returns their
        number.
        """
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
