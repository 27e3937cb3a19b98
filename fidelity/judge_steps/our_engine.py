"""Understudy's scheduler and KV cache as an `Engine` of the judge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from app.core.base.metrics.recorder import Recorder
from app.core.engine.batch import (
    Batch,
    Blocks,
    LoRASlots,
    SchedulerLimits,
    SchedulerRules,
    SequenceState,
)
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.kvcache.events import KVEvent
from app.core.engine.kvcache.hashing import BlockHasher, Placeholder
from app.core.engine.kvcache.stores import ConnectorStore
from app.core.engine.lora import Adapter, LoRARegistry
from app.core.engine.schedulers import make_scheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue
from app.core.versions.chain import PlayedVersion
from app.shared.step_policies.choice import policies_of
from app.shared.step_policies.encoder_budget import (
    EncoderBudget,
    EncoderItem,
    EncoderLimits,
    EncoderSeconds,
)
from fidelity.judge_steps.load import (
    BANDWIDTH,
    BLOCK_BYTES,
    FAILED,
    MAX_ADAPTER,
    OFFLOAD,
    STORE,
    Load,
    Plan,
    Step,
)

if TYPE_CHECKING:
    from app.core.base.clock.clock import Clock
    from app.core.base.clock.timer_wheel import TimerWheel
    from app.extensions.cache_groups.cache import GroupedCache
    from app.extensions.kv_offload.options import OffloadOptions

HASH_SEED = "0"
"""PYTHONHASHSEED of vLLM's process."""


class PlannedSequence(SequenceState):
    """The choice of a plan."""

    __slots__ = ("adapter", "plan")

    def __init__(self, plan: Plan) -> None:
        super().__init__(len(plan.prompt), plan.output_tokens, plan.priority, remote=plan.is_remote)
        self.plan = plan
        self.choice = plan.choice
        self.stops = 0 < plan.output_tokens < plan.max_tokens
        self.adapter = _name(plan.adapter) if plan.adapter else None

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        """See `CachedSequence`."""
        return [self.plan.reply_token(index) for index in range(start, stop)]


class PlannedDrafts:
    """The drafts of plans. A step that overlaps with another has the maximum number."""

    def __init__(self, load: Load) -> None:
        self.padding = load.max_drafts
        self._varies = load.drafter == "ngram" and not load.is_asynchronous

    def propose(self, sequence: SequenceState, limit: int) -> int:
        """See `Speculation`."""
        assert isinstance(sequence, PlannedSequence)
        if self._varies:
            return sequence.plan.draft_count(sequence.written, self.padding)
        return self.padding

    def accepted(self, sequence: SequenceState, drafts: int) -> int:
        """See `Speculation`."""
        assert isinstance(sequence, PlannedSequence)
        return sequence.plan.accepted_count(sequence.written, drafts)


class NotedPrompts(SchedulingPolicy[PlannedSequence]):
    """Notes the prompt tokens that each sequence computes in a step."""

    def __init__(self) -> None:
        self.prefills: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        """Tokens of each sequence before its part of the step."""

    def begin_step(self) -> None:
        """Forgets the step before."""
        self.prefills.clear()
        self.starts.clear()

    def prefill(self, sequence: PlannedSequence, tokens: int) -> None:
        """See `SchedulingPolicy`."""
        self.prefills[sequence.plan.name] = tokens
        self.starts[sequence.plan.name] = sequence.computed


class TurnClock:
    """A clock that counts the turns of an engine, instead of seconds."""

    def __init__(self, engine: OurEngine) -> None:
        self._engine = engine

    def now(self) -> float:
        """Returns the number of turns that are over."""
        return self._engine.turn


class NoWheel:
    """A timer wheel that runs nothing: the engine ends transfers itself."""

    def add(self, due_s: float, item: object) -> None:
        """Does nothing."""


class OurEngine:
    """The parts of a simulated engine that make steps, without time."""

    def __init__(self, load: Load, version: PlayedVersion) -> None:
        self.in_flight = 0
        self._load = load
        self._events: list[KVEvent] = []
        self._cache: KVCacheManager | None = None
        adapters = range(1, MAX_ADAPTER + 1)
        self._registry = LoRARegistry(Adapter(_name(number), f"/a{number}") for number in adapters)
        self._blocks = self._make_blocks(load, version)
        lora = LoRASlots(load.max_loras, self._registry.number) if load.max_loras else None
        self._prompts = NotedPrompts()
        limits = limits_of(load, version.rules(SchedulerRules))
        drafts = PlannedDrafts(load) if load.drafter else None
        queue: WaitingQueue[PlannedSequence] = WaitingQueue(lora, load.by_priority)
        policies = [*policies_of(limits, self._blocks, drafts), self._prompts]
        self._encoder: EncoderBudget[PlannedSequence] | None = None
        if load.encoder_budget:
            self._encoder = EncoderBudget(
                encoder_limits_of(load), limits, _images_of, EncoderSeconds()
            )
            policies.append(self._encoder)
        self._scheduler = make_scheduler(limits, self._blocks, queue, policies)
        self._scheduler.watch_preempted = self._note_preempted
        self._scheduler.on_fetch = self._start_transfer
        self.turn = 0
        """Number of steps that are over, with those without tokens."""
        self._transfers: dict[PlannedSequence, float] = {}
        """Requests that wait for a cache, each with the turn in which it arrives."""
        self._sequences: dict[str, PlannedSequence] = {}
        self._batches: deque[Batch[PlannedSequence]] = deque()
        self._next = Step()

    @property
    def unfinished(self) -> int:
        """Number of requests that are waiting or running."""
        return len(self._sequences)

    @property
    def fetching(self) -> bool:
        """True while a transfer is under way."""
        from app.extensions.kv_offload.offloads import Offloads

        tiers = [policy for policy in self._blocks.policies if isinstance(policy, Offloads)]
        return bool(self._transfers) or any(tier.is_busy for tier in tiers)

    def _make_blocks(self, load: Load, version: PlayedVersion) -> Blocks[Any]:
        if not load.caches_prefixes:
            return CountedBlocks(load.blocks, load.block_size, caching=False)
        hasher = BlockHasher(load.hash_algorithm, load.block_size, HASH_SEED, Random(0))  # type: ignore[arg-type]
        make_cache: Callable[..., KVCacheManager] = KVCacheManager
        if load.groups:
            make_cache = _grouped_cache(load, version)
        if load.connector == OFFLOAD:
            make_cache = _tiered_cache(load, version)
        self._cache = make_cache(
            load.blocks,
            hasher,
            Recorder("judge", 4096, {}),
            adapter_of=self._registry.adapter,
            publish=self._events.extend,
            store=ConnectorStore(load.block_size) if load.connector == STORE else None,
        )
        self._cache.attach(cast("Clock", TurnClock(self)), cast("TimerWheel", NoWheel()))
        rules = version.rules(SchedulerRules)
        self._cache.tags_hash_keys = rules.tags_hash_keys
        self._cache.caches_drafts = load.is_asynchronous or rules.caches_drafts
        return self._cache

    def _make_sequence(self, plan: Plan) -> PlannedSequence:
        sequence = PlannedSequence(plan)
        if self._cache is not None:
            adapter = None
            if sequence.adapter is not None:
                adapter = self._registry.adapter(sequence.adapter)
            sequence.prompt = self._cache.make_prompt(
                plan.prompt,
                adapter=adapter,
                salt=plan.salt,
                placeholders=[
                    Placeholder(image.name, image.start, image.length) for image in plan.images
                ],
            )
        return sequence

    def add(self, plan: Plan) -> None:
        """Queues a request."""
        sequence = self._make_sequence(plan)
        self._sequences[plan.name] = sequence
        self._scheduler.waiting.add(sequence)

    def abort(self, name: str) -> None:
        """Removes a request, unless it is over."""
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def command(self, name: str, adapter: int) -> None:
        """Runs a command of an operator."""
        scheduler = self._scheduler
        if name == "load":
            self._registry.load(_name(adapter), f"/a{adapter}", in_place=True)
        elif name == "unload" and _name(adapter) in self._registry:
            self._registry.unload(_name(adapter))
        if name == "reset-running":
            scheduler.preempt_all(self._batches)
        if name.startswith("reset"):
            done = self._cache is None or self._cache.reset(under_requests=name != "reset")
            self._next.events.append(["reset", done])
        elif name in ("pause", "keep", "resume"):
            scheduler.paused = name == "pause"
            scheduler.held = name == "keep"

    def schedule(self) -> Step | None:
        """Makes a step; returns None if there is nothing to compute."""
        batch = self._scheduler.schedule()
        if batch is None:
            return None
        step = self._next
        self._next = Step()
        computed = dict.fromkeys(batch.decodes, 1)
        for name, tokens in self._prompts.prefills.items():
            sequence = self._sequences[name]
            if sequence.running:
                computed[sequence] = tokens
        for sequence, drafted in batch.drafts.items():
            computed[sequence] += drafted.drafts
        step.tokens = [
            (sequence.plan.name, computed[sequence])
            for sequence in sorted(computed, key=lambda sequence: sequence.place)
        ]
        step.admitted = [
            (sequence.plan.name, self._prompts.starts[sequence.plan.name])
            for sequence in batch.admitted
        ]
        step.preempted.sort()
        step.free = self._blocks.free
        if self._load.groups:
            cache = cast("GroupedCache", self._cache)
            step.free = cache.pool.free
            step.tables = [(name, cache.tables(self._sequences[name])) for name, _ in step.tokens]
        if self._encoder is not None:
            step.encoded = [
                (sequence.plan.name, numbers) for sequence, numbers in self._encoder.encoded.items()
            ]
        self._batches.append(batch)
        self.in_flight += 1
        return step

    def complete(self) -> None:
        """Ends the oldest step under way."""
        batch = self._batches.popleft()
        self.in_flight -= 1
        self.turn += 1
        sampled = batch.receivers()
        counts = {sequence: 1 for sequence in sampled}
        for sequence, drafted in batch.drafts.items():
            counts[sequence] = 1 + drafted.delivered
        self._step_over([(sequence, counts[sequence]) for sequence in sampled if sequence.running])
        for sequence in sampled:
            name = sequence.plan.name
            if name in self._sequences:
                tokens = counts[sequence] if sequence.output_tokens else 0
                self._next.sampled.append((name, tokens))
                if sequence in batch.ends:
                    self._next.finished.append(name)
                    del self._sequences[name]
        self._scheduler.complete(batch)
        self._end_transfers()

    def wait(self) -> None:
        """Ends a step without tokens, in which only transfers go on."""
        self.turn += 1
        self._step_over([])
        self._end_transfers()

    def _step_over(self, due: Sequence[tuple[PlannedSequence, int]]) -> None:
        """Gives the cache the tokens of a step that is over."""
        if self._cache is not None:
            self._cache.step_over(due)
            self._next.events += msgspec.to_builtins(self._events)
            self._events.clear()

    def _end_transfers(self) -> None:
        for sequence, turn in list(self._transfers.items()):
            if turn <= self.turn:
                del self._transfers[sequence]
                self._end_transfer(sequence)

    def _start_transfer(self, sequence: PlannedSequence) -> None:
        steps: float = sequence.plan.transfer_steps
        if sequence.loaded:
            steps = sequence.load_s
        self._transfers[sequence] = self.turn + steps

    def _end_transfer(self, sequence: PlannedSequence) -> None:
        lost_block = sequence.plan.lost_block
        if lost_block is None or sequence.loaded:
            self._scheduler.fetched(sequence)
        elif lost_block == FAILED:
            self._scheduler.fetched(sequence, tokens=0)
        else:
            tokens = sequence.computed + lost_block * self._load.block_size
            self._scheduler.fetched(sequence, min(tokens, sequence.prompt_tokens))

    def take_rest(self) -> Step:
        """Returns what happened since the latest step."""
        return self._next

    def _note_preempted(self, victim: PlannedSequence, needy: PlannedSequence) -> None:
        self._next.preempted.append(victim.plan.name)


def _grouped_cache(load: Load, version: PlayedVersion) -> Callable[..., KVCacheManager]:
    """Returns what makes a cache with the groups of a load."""
    from app.extensions.cache_groups.cache import GroupedCache
    from app.extensions.cache_groups.layers import GroupSpec
    from app.extensions.cache_groups.options import CacheOptions, GroupRules

    interval = load.retention_interval
    rules = version.rules(SchedulerRules)
    options = CacheOptions(
        groups=[GroupSpec(group.kind, group.window) for group in load.groups],  # type: ignore[arg-type]
        # None keeps everything, as an interval of one block does.
        retention_blocks=1 if interval is None else interval // load.block_size,
        max_batched_tokens=load.max_num_batched_tokens,
        max_model_len=load.max_tokens,
        max_prompt_tokens=load.max_num_batched_tokens,
        depth=load.depth,
        shares_known_states=rules.shares_known_states,
        checkpoints_before_end=rules.checkpoints_before_end,
        reconciles_hits=rules.reconciles_hits,
        frees_all_skipped_states=rules.frees_all_skipped_states,
        rules=version.rules(GroupRules),
    )
    return partial(GroupedCache, options=options)


def _tiered_cache(load: Load, version: PlayedVersion) -> Callable[..., KVCacheManager]:
    """Returns what makes a cache with the tier of a load."""
    from app.extensions.kv_offload.cache import TieredCache

    return partial(TieredCache, options=tier_options(load, version))


def tier_options(load: Load, version: PlayedVersion) -> OffloadOptions:
    """Returns the options of a load's tier. Its seconds are the turns of the engine."""
    from app.extensions.kv_offload.options import OffloadOptions, OffloadRules

    rules = version.rules(SchedulerRules)
    return OffloadOptions(
        chunks=load.tier_chunks,
        block_bytes=BLOCK_BYTES,
        blocks_per_chunk=load.chunk_blocks,
        bandwidth=BANDWIDTH,
        policy=load.tier_policy,
        store_threshold=load.store_threshold,
        in_steps=True,
        offers_again=rules.offers_again,
        orders_prompts=rules.offers_again,
        chunk_uses=rules.chunk_uses,
        rules=version.rules(OffloadRules),
    )


def limits_of(load: Load, rules: SchedulerRules) -> SchedulerLimits:
    """Returns the scheduler's options."""
    return SchedulerLimits(
        max_num_seqs=load.max_num_seqs,
        max_num_active_seqs=load.max_num_active_seqs,
        defers_frees=bool(load.connector) and load.is_asynchronous,
        max_num_batched_tokens=load.max_num_batched_tokens,
        long_prefill_token_threshold=load.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=load.is_threshold_adaptive,
        enable_chunked_prefill=load.enable_chunked_prefill,
        watermark=load.watermark,
        prefill_schedule_interval=load.prefill_schedule_interval,
        draft_slots=1 if load.drafter == "draft_model" else 0,
        lookahead=load.max_drafts if load.drafter == "draft_model" else 0,
        by_priority=load.by_priority,
        rules=rules,
    )


def encoder_limits_of(load: Load) -> EncoderLimits:
    """Returns the options of a load's encoder."""
    return EncoderLimits(
        budget=load.encoder_budget,
        cache_size=load.encoder_cache_size,
        overlaps_steps=load.is_asynchronous,
        disable_chunked_mm_input=load.disable_chunked_mm_input,
    )


def _images_of(sequence: PlannedSequence) -> Sequence[EncoderItem]:
    images = sequence.plan.images
    return [EncoderItem(image.name, image.start, image.length) for image in images]


def _name(adapter: int) -> str:
    return f"a{adapter}"
