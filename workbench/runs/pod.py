"""One engine of an offline run: its scheduler, its blocks and its step loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, nextafter
from random import Random

import msgspec
from msgspec.structs import replace

from workbench.engine.counting_scheduler import CountingScheduler
from workbench.engine.steps import (
    Batch,
    Blocks,
    CostModel,
    CountedBlocks,
    Drafts,
    EngineLimits,
    PrefillTime,
    Profile,
    Scheduler,
    SchedulerLimits,
    SchedulerRules,
    SchedulingPolicy,
    StepLoop,
    WaitingQueue,
    least_seconds,
    make_scheduler,
    policies_of,
)
from workbench.runs.adapters import AdapterCosts, AdapterPlan
from workbench.runs.images import encoder_budget
from workbench.runs.kv_tiers import KvTier, TierRules, TierUse
from workbench.runs.prefix_blocks import OfflineRequest, PrefixBlocks
from workbench.runs.timeline import Timeline
from workbench.runs.token_gaps import TokenGaps

ROUNDED_DOWN = 1 - 1e-9
"""Factor of a sum of seconds that may be rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """Objects that the pods of a simulation share."""

    profile: Profile
    shares_prefixes: bool
    """True if prompts of the load share prefixes."""
    begin_s: float
    """Start of the run."""
    gaps: TokenGaps
    rules: SchedulerRules
    """Rules of the simulated version of vLLM."""
    on_end: Callable[[OfflineRequest], None]
    """Called with each request at its last token."""
    known_ends: list[float] | None = None
    """Receives when each end of a request can be known; see `Pod.foresee`. None if not needed."""
    watch: Watch | None = None
    tiers: tuple[KvTier, ...] = ()
    """Tiers that keep blocks outside of the devices."""
    tier_rules: TierRules = TierRules()
    adapters: AdapterPlan | None = None
    by_priority: bool = False
    """True if the scheduler follows priorities."""
    largest_image: int = 0
    """Tokens; 0 for a load without images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """Sums of a pod over a run."""

    timeline: Timeline
    steps: int
    preemptions: int
    cached_tokens: int
    """Prompt tokens found in the cache at the first admission of requests."""
    tier_uses: Sequence[TierUse]
    """Tokens and bytes that each tier of the pod has provided."""


class Pod(StepLoop[OfflineRequest]):
    """A simulated engine with the limits of the profile."""

    # Attributes of each step, of `StepLoop` too: see `CountingScheduler`.
    __slots__ = (
        "_cost",
        "_depth",
        "_end_s",
        "_front",
        "_foresees",
        "_gaps",
        "_handed_out_s",
        "_known_ends",
        "_on_end",
        "_out_s",
        "_paused",
        "_seen_s",
        "_tokens_s",
        "_under_way",
        "_watch",
        "blocks",
        "due_s",
        "line",
        "next_s",
        "now_s",
        "scheduler",
        "steps",
        "timeline",
        "token_s",
        "transfers",
        "watch_stall",
        "watch_step",
    )

    def __init__(self, context: PodContext, cost: CostModel, seed: str) -> None:
        profile = context.profile
        limits = profile.engine
        self.blocks = self.make_blocks(context)
        blocks: Blocks[OfflineRequest] = self.blocks
        drafts = None
        step_limits = scheduler_limits(limits, context.rules)
        if self.has_connector() and limits.async_scheduling:
            step_limits = replace(step_limits, defers_frees=True)
        speculation = profile.speculation
        if speculation is not None:
            drafts = Drafts(speculation.acceptance, Random(seed))
            step_limits = replace(
                step_limits,
                draft_slots=speculation.draft_slots,
                lookahead=speculation.lookahead,
            )
        queue: WaitingQueue[OfflineRequest] = WaitingQueue()
        if context.by_priority or context.adapters is not None:
            step_limits = replace(step_limits, by_priority=context.by_priority)
            slots = None if context.adapters is None else context.adapters.slots()
            queue = WaitingQueue(slots, context.by_priority)
        if context.adapters is not None:
            cost = AdapterCosts(cost, context.adapters)
        policies = policies_of(step_limits, blocks, drafts)
        if context.largest_image:
            policies.append(encoder_budget(profile, step_limits, context.largest_image))
        scheduler = self._make_scheduler(step_limits, queue, policies)
        if limits.engine_step_time:
            scheduler.prefill_limit = PrefillTime(scheduler, profile.cost, limits.engine_step_time)
        depth = 2 if limits.async_scheduling else 1
        super().__init__(scheduler, cost, profile.front, depth=depth)
        self.due_s = inf
        """Time of the next work, as far as the simulation knows; infinite without work."""
        self.timeline = Timeline(context.begin_s)
        self._gaps = context.gaps
        self._tokens_s = 0.0
        """Time of the tokens of the latest step that is over."""
        self._paused: list[OfflineRequest] = []
        """Requests that were preempted since the latest step was made."""
        self._watch = context.watch
        self._foresees = drafts is None and not self.has_connector()
        """True if no later step changes which requests a step under way ends."""
        self.token_s = 0.0
        """Seconds that each token of a request takes at least."""
        if self._foresees:
            self.token_s = ROUNDED_DOWN * least_seconds(cost)
        self._on_end = context.on_end
        self._known_ends = context.known_ends
        self.watch_step = self._record_step

    def make_blocks(self, context: PodContext) -> CountedBlocks | PrefixBlocks:
        """Returns the block pool."""
        limits = context.profile.engine
        if context.shares_prefixes and limits.enable_prefix_caching:
            return PrefixBlocks(limits.num_gpu_blocks, limits.block_size)
        return CountedBlocks(limits.num_gpu_blocks, limits.block_size, limits.enable_prefix_caching)

    def _make_scheduler(
        self,
        limits: SchedulerLimits,
        queue: WaitingQueue[OfflineRequest],
        policies: Sequence[SchedulingPolicy[OfflineRequest]],
    ) -> Scheduler[OfflineRequest]:
        blocks = self.blocks
        visits_decodes = any(policy.visits_decodes for policy in policies)
        if isinstance(blocks, CountedBlocks) and not visits_decodes:
            return CountingScheduler(limits, blocks, queue, policies)
        return make_scheduler(limits, blocks, queue, policies)

    def has_connector(self) -> bool:
        """Returns whether a connector may write into free blocks."""
        return False

    def figures(self) -> PodFigures:
        """Returns the sums of the run so far."""
        blocks = self.blocks
        cached_tokens = 0
        if isinstance(blocks, PrefixBlocks):
            cached_tokens = blocks.hits * blocks.block_size
        return PodFigures(
            timeline=self.timeline,
            steps=self.steps,
            preemptions=self.scheduler.preemptions,
            cached_tokens=cached_tokens,
            tier_uses=self.tier_uses(),
        )

    def tier_uses(self) -> Sequence[TierUse]:
        """Returns what each tier has provided."""
        return ()

    def gauges(self) -> dict[str, float]:
        """Returns the gauges of `/metrics` that autoscalers read."""
        return {
            "waiting": len(self.scheduler.waiting.members),
            "running": len(self.scheduler.running),
            "kv_cache_usage": 1 - self.blocks.free / self.blocks.capacity,
        }

    def cached_blocks(self, keys: Sequence[bytes]) -> int:
        """Returns the number of blocks in the longest cached prefix of `keys`."""
        blocks = self.blocks
        if not keys or not isinstance(blocks, PrefixBlocks):
            return 0
        # Tails are evicted first, so the last block implies all earlier ones.
        if blocks.pool.longest_prefix(keys[-1:]):
            return len(keys)
        return len(blocks.pool.longest_prefix(keys))

    def foresee(self) -> float:
        """Times the ends of requests in the steps under way.

        Returns a time before which no other request ends that was sent so far.
        """
        if not self._foresees:
            return self.next_s
        if any([batch.ends for _, batch in self._under_way]):
            self._time_known_ends()
        start_s = max(self.next_s, self._end_s)
        return start_s + self.token_s * self._steps_before_end()

    def _time_known_ends(self) -> None:
        handed_out_s = self._handed_out_s
        for end_s, batch in self._under_way:  # as `go_on` will
            first_s = max(end_s, handed_out_s) + self._out_s
            streams = len(batch.decodes) + len(batch.prefilled) - len(batch.overruns)
            handed_out_s = first_s + (streams - 1) * self._out_s
            if batch.ends and batch.ends[0].last_s < 0:
                self._time_ends(batch, end_s, first_s=first_s, gap_s=self._out_s)

    def _steps_before_end(self) -> int:
        """Returns the least number of steps, from the next one to make, that end a request."""
        scheduler = self.scheduler
        if scheduler.preemptions:  # a request may continue shortly before its end
            return 1
        steps = 1 + scheduler.steps_before_end()
        for request in chain(scheduler.waiting.members, scheduler.prefilling):
            steps = min(steps, request.output_tokens)
        for _, request in self.line:
            steps = min(steps, request.output_tokens)
        return steps

    def see(self, sequence: OfflineRequest, at_s: float) -> None:
        """Gives the scheduler a request, and receives its preemptions."""
        sequence.pauses = self._paused
        super().see(sequence, at_s)

    def _record_pauses(self) -> None:
        """Stores when the requests that were just preempted got their last tokens."""
        for request in self._paused:
            request.paused_s = self._tokens_s
        self._paused.clear()

    def _record_step(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        if self._paused:
            self._record_pauses()
        used_blocks = self.blocks.capacity - self.blocks.free
        self.timeline.record(start_s, end_s, sequences=batch.sequences, blocks=used_blocks)
        if self._watch is not None:
            self._watch(self, batch, start_s, end_s)

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        """Stores the times of first tokens, and ends the requests that got their last token."""
        decodes = batch.decodes
        if decodes:
            self._gaps.add(first_s - self._tokens_s, len(decodes), first_s)
        self._tokens_s = first_s
        if batch.prefilled:
            self._record_prefills(batch, first_s, gap_s)
        if batch.ends:
            self._record_ends(batch, first_s, gap_s)

    def _record_prefills(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        prefilled = batch.prefilled
        start = len(batch.decodes)
        streams: Sequence[int] = range(start, start + len(prefilled))
        if batch.is_overtaken:
            receivers = batch.receivers()
            streams = [receivers.index(request) for request in prefilled]
        for stream, request in zip(streams, prefilled, strict=True):
            if request.first_s < 0:
                request.first_s = first_s + stream * gap_s
            elif request.paused_s >= 0:
                self._gaps.add(first_s - request.paused_s, 1, first_s)

    def _record_ends(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        if batch.ends[0].last_s < 0:
            self._time_ends(batch, self.now_s, first_s=first_s, gap_s=gap_s)
        for request in batch.ends:
            self._on_end(request)

    def _time_ends(
        self, batch: Batch[OfflineRequest], end_s: float, *, first_s: float, gap_s: float
    ) -> None:
        """Stores when requests end by a step that is over at `end_s`."""
        receivers = batch.receivers()
        for request in batch.ends:
            request.last_s = last_s = first_s + receivers.index(request) * gap_s
            if self._known_ends is not None:
                # A choice in the very moment of a step's end does not know of that end.
                self._known_ends.append(max(last_s, nextafter(end_s, inf)))


Watch = Callable[[Pod, Batch[OfflineRequest], float, float], None]
"""Receives every step with its start and its end, in seconds."""


def scheduler_limits(limits: EngineLimits, rules: SchedulerRules) -> SchedulerLimits:
    """Returns the limits that the scheduler applies, with the rules of a version."""
    step_limits = msgspec.convert(limits, SchedulerLimits, from_attributes=True)
    return replace(step_limits, rules=rules)
