"""The step loop on the live clock: runs the sequences of a server that share steps.

One entry in the timer wheel serves the whole engine: its turns advance the loop and hand out due
tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import repeat
from math import inf
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.batch import Batch, Blocks, LoRASlots, SchedulerLimits
from app.core.engine.executor import AFTER_SHUTDOWN, SequenceContext, SequenceExecutor
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.schedulers import make_scheduler
from app.core.engine.sections import EngineSections
from app.core.engine.step_cost import CostModel, PrefillTime, StepCost
from app.core.engine.step_loop import StepLoop
from app.core.engine.stepped_sequence import SteppedSequence
from app.core.engine.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from app.core.engine.profile import Profile

MAX_TOKENS_PER_TURN = 256
"""Maximum tokens handed out in one turn of the event loop: about two milliseconds of work."""
ROUNDING_S = 2e-6
"""Maximum time that the wheel is too early by rounding, in seconds."""


class DueTokens(Struct):
    """Tokens of a step, due one sequence after another."""

    tokens: list[tuple[SteppedSequence, int]]
    left: int
    """Number of sequences that have not got their tokens."""
    next_s: float
    """Due time of the first sequence."""


class StepExecutor(StepLoop[SteppedSequence], SequenceExecutor):
    """`StepLoop` on the live clock.

    Records each step, and publishes the cache's events at its end. At most `max-num-seqs` sequences
    run at a time.
    """

    def __init__(
        self,
        sections: EngineSections,
        profile: Profile,
        context: SequenceContext,
        lora: LoRASlots,
        rng: Random,
        cost: CostModel | None = None,
    ) -> None:
        """`cost` replaces the profile's cost model. `rng` decides which drafts are right."""
        scheduling = sections.scheduling
        steps = sections.steps
        speculation = profile.speculation
        has_connector = sections.kvcache.kv_connector not in ("", "none")
        limits = SchedulerLimits(
            max_num_seqs=scheduling.max_num_seqs,
            max_num_active_seqs=steps.max_num_active_seqs,
            max_num_batched_tokens=steps.max_num_batched_tokens,
            long_prefill_token_threshold=steps.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=steps.long_prefill_token_threshold_adaptive,
            enable_chunked_prefill=steps.enable_chunked_prefill,
            watermark=steps.watermark,
            prefill_schedule_interval=steps.prefill_schedule_interval,
            draft_slots=0 if speculation is None else speculation.draft_slots,
            lookahead=0 if speculation is None else speculation.lookahead,
            by_priority=scheduling.scheduling_policy == "priority",
            defers_frees=steps.async_scheduling and has_connector,
            rules=context.rules,
        )
        self.context = context
        self._cache = context.cache
        self.blocks: Blocks[SteppedSequence]
        if context.cache is not None:
            self.blocks = context.cache
            context.cache.caches_drafts = steps.async_scheduling or context.rules.caches_drafts
        else:
            kvcache = sections.kvcache
            self.blocks = CountedBlocks(kvcache.kv_cache_size, kvcache.block_size, caching=False)
        self._clock = context.clock
        self._wheel = context.wheel
        self._recorder = context.recorder
        self._timing = context.timing
        self._queue: WaitingQueue[SteppedSequence] = WaitingQueue(lora, limits.by_priority)
        if speculation is not None:
            from app.core.base.metrics.draft_counters import DraftCounters

            positions = len(speculation.acceptance)
            self._draft_counters = DraftCounters(context.recorder.instruments, positions)
        policies = [
            policy
            for make_policies in context.policies
            for policy in make_policies(limits, self.blocks, speculation, rng)
        ]
        scheduler = make_scheduler(limits, self.blocks, self._queue, policies)
        target_s = profile.engine.engine_step_time
        if target_s:
            scheduler.prefill_limit = PrefillTime(scheduler, profile.cost, target_s)
        super().__init__(
            scheduler,
            cost or StepCost(profile.cost),
            profile.front,
            depth=2 if steps.async_scheduling else 1,
        )
        self._in_line = 0
        """Number of unfinished sequences in the front end."""
        self._out: deque[DueTokens] = deque()
        self._alarm_s = inf
        """Time of the next turn; an entry of the wheel that comes earlier is stale."""
        self._is_in_turn = False
        """True in `run_due`, which returns its next time instead of setting an alarm."""

    @property
    def limits(self) -> SchedulerLimits:
        """The limits of steps, as the policies may have changed them at the start."""
        return self.scheduler.limits

    @property
    def running(self) -> int:  # type: ignore[override]  # the scheduler counts them
        """Number of running sequences."""
        return len(self.scheduler.running)

    @property
    def queued(self) -> int:
        """Number of waiting sequences that the scheduler has seen."""
        return len(self._queue.members) + len(self.scheduler.fetching)

    @property
    def waiting(self) -> int:
        """Number of waiting sequences, including those in the front end."""
        return self._in_line + len(self._queue.members) + len(self.scheduler.fetching)

    def not_started(self) -> Iterator[SteppedSequence]:
        """Yields the waiting sequences, without preempted ones."""
        for sequence in (*self._queue.members, *self.scheduler.fetching):
            if sequence.scheduled_s is None:
                yield sequence
        for _, sequence in self.line:
            if not sequence.over:
                yield sequence

    def sort(self, by_priority: bool) -> None:
        """Sets the order of waiting sequences, and of preemptions."""
        self._queue.sort(by_priority)
        # Not the limits of the settings: older versions take the slots of drafts from these.
        self.scheduler.limits = replace(self.limits, by_priority=by_priority)

    def free(self, adapter: str | None = None) -> int:
        """Returns how many sequences with `adapter` could start now."""
        scheduler = self.scheduler
        is_paused = scheduler.paused or scheduler.held
        if is_paused or adapter is not None and not self._queue.is_ready(adapter):
            return 0
        return scheduler.limits.max_running - len(scheduler.running)

    def pause(self) -> None:
        """Admits no more sequences; running ones continue."""
        self.scheduler.paused = True

    def hold(self) -> None:
        """Computes nothing; the steps under way still end."""
        self.scheduler.held = True

    def resume(self) -> None:
        """Admits and computes sequences again."""
        self.scheduler.paused = False
        self.scheduler.held = False
        self.wake_now()

    def enqueue(self, sequence: SteppedSequence, *, later: bool = False) -> None:
        """Takes a sequence into the front end; see `SequenceExecutor.enqueue`.

        The scheduler sees each of several prompts separately.
        """
        if self.is_shut_down:
            raise RuntimeError(AFTER_SHUTDOWN)
        request = sequence.request
        apart = request.index > 0 and request.index % request.n == 0
        late_s = self._clock.now() - self.send(sequence, request.arrival_s, apart)
        if late_s > 0:
            self._recorder.late(late_s)
        self._in_line += 1
        self._arm()

    def leave(self, sequence: SteppedSequence) -> None:
        """Removes a sequence, at its end."""
        if not sequence.arrived:
            self._in_line -= 1
            return
        if sequence.adapter is not None:
            self._recorder.adapter_moved(sequence, sequence.adapter, None)
        if self.scheduler.remove(sequence):
            self.wake_now()

    def wake_now(self) -> None:
        """Looks at once, unless a step is under way, whether a step can be made."""
        if not self._under_way and not self.scheduler.idle:
            self.wake(self._clock.now())
            self._arm()

    def see(self, sequence: SteppedSequence, at_s: float) -> None:
        """Gives the scheduler a sequence that leaves the front end.

        A sequence ends here if less of its prompt is cached than `cache_hit_threshold` demands.
        """
        if sequence.over:
            return
        sequence.queued_s = at_s
        threshold = sequence.request.cache_hit_threshold
        if threshold:
            cache = self._cache
            tokens = sequence.prompt_tokens
            cached = 0 if cache is None else cache.find(sequence, tokens) * cache.block_size
            if cached / max(1, tokens) < threshold:
                now_s = self._clock.now()
                future = sequence.created_future
                if future is not None and not sequence.claim_future(future):
                    return
                sequence.scheduled_s = now_s
                sequence.empty()
                sequence.hand_out(now_s, 1)
                return
        if sequence.adapter is not None:
            self._recorder.adapter_moved(sequence, sequence.adapter, "waiting")
        self._in_line -= 1
        self._queue.add(sequence)

    def transfer_s(self, sequence: SteppedSequence) -> float:
        """Returns the seconds until the cache of a remote prefill or of a store has arrived."""
        if sequence.loaded:
            return sequence.load_s
        return self._timing.time_to_first_token(sequence.prompt_tokens, remote=True)

    def admitted(self, batch: Batch[SteppedSequence]) -> None:
        """Notes the start of the sequences that a new step admits."""
        for sequence in batch.admitted:
            if sequence.over:
                continue
            if sequence.scheduled_s is None:
                future = sequence.created_future
                if future is not None and not sequence.claim_future(future):
                    continue
                sequence.scheduled_s = self.now_s
            if sequence.adapter is not None:
                self._recorder.adapter_moved(sequence, sequence.adapter, "running")

    def step_over(self, batch: Batch[SteppedSequence], first_s: float, gap_s: float) -> None:
        """Records a step, caches its tokens, and queues them for their receivers."""
        recorder = self._recorder
        drafts = batch.drafts
        due = list(zip(batch.receivers(), repeat(1), strict=False))
        if drafts:
            self._count_drafts(due, batch)
        if self._cache is not None:
            self._cache.step_over(
                [
                    (sequence, count)
                    for sequence, count in due
                    if sequence.running and not sequence.over
                ]
            )
        for sequence in batch.ends:
            if sequence.adapter is not None and not sequence.over:
                recorder.adapter_moved(sequence, sequence.adapter, None)
        if due:
            tokens = sum([count for _, count in due]) if drafts else len(due)
            for sequence in batch.prefilled:
                # As in vLLM, a prompt counts in the step of its last chunk. After a preemption, a
                # sequence that has begun does not count again.
                if not sequence.over and not sequence.begun:
                    tokens += (
                        sequence.prompt_tokens - sequence.cached_tokens - sequence.fetched_tokens
                    )
            recorder.step(tokens)
            self._out.append(DueTokens(due, len(due), first_s))

    def _count_drafts(
        self, due: list[tuple[SteppedSequence, int]], batch: Batch[SteppedSequence]
    ) -> None:
        """Records the drafts of a step, and adds those of the replies to the tokens in `due`."""
        drafts = batch.drafts
        for place, (sequence, _) in enumerate(due):
            if sequence in drafts:
                due[place] = sequence, 1 + drafts[sequence].delivered
        for sequence, drafted in drafts.items():
            if sequence not in batch.overruns:
                self._draft_counters.count(drafted.drafts, Counter(range(drafted.accepted)))

    def _arm(self) -> None:
        due_s = self.next_s
        if self._out:
            due_s = min(due_s, self._out[0].next_s)
        if due_s < self._alarm_s and not self._is_in_turn:
            self._alarm_s = due_s
            self._wheel.add(due_s, self)

    def fail(self, error: Exception) -> None:
        """Sets the alarm again after a turn that raised an error."""
        self._alarm_s = inf
        self._arm()

    def run_due(self, now_s: float) -> float | None:
        """Handles loop events and due tokens in order of time.

        Returns the next due time, or None.
        """
        if now_s < self._alarm_s - ROUNDING_S:
            return None  # a stale entry
        self._is_in_turn = True
        budget = MAX_TOKENS_PER_TURN
        out = self._out
        try:
            while True:
                out_s = out[0].next_s if out else inf
                if out and out_s <= self.next_s:
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
            self._is_in_turn = False
        return None if self._alarm_s == inf else self._alarm_s

    def _hand_out(self, until_s: float, limit: int) -> int:
        """Hands out up to `limit` tokens of the oldest step that are due by `until_s`.

        Returns their number.
        """
        oldest = self._out[0]
        count = 0
        while oldest.left and count < limit and oldest.next_s <= until_s:
            at_s = oldest.next_s
            sequence, tokens = oldest.tokens[-oldest.left]
            oldest.left -= 1
            oldest.next_s += self._out_s
            count += 1
            if not sequence.over:
                sequence.hand_out(at_s, tokens)
        if not oldest.left:
            self._out.popleft()
        return count
