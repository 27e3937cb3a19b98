"""A KV cache whose blocks are also stored in tiers, as by vLLM's OffloadingConnector.

Start with `TieredCache`. Full blocks of prompts are offered to the tiers with the step that
computes them, and stored after it. A prompt loads the blocks that only the tiers have: it holds its
blocks meanwhile, and other sequences go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.core.base.clock.timer_wheel import SLOTS_PER_S
from app.core.engine.kvcache.cache import SPEC_KIND, KVCacheManager
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.events import BlockStored
from app.extensions.kv_offload.cpu_tier import Access, CpuTier
from app.extensions.kv_offload.events import EventWriter
from app.extensions.kv_offload.metrics import OffloadCounters
from app.extensions.kv_offload.options import OffloadOptions, offload_options
from app.extensions.kv_offload.policies import Key
from app.extensions.kv_offload.tiers import TierHit, Tiers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.core.base import Bounded
    from app.core.base.clock.clock import Clock
    from app.core.base.clock.timer_wheel import TimerWheel
    from app.core.base.metrics.recorder import Recorder
    from app.core.engine.kvcache.hashing import BlockHasher
    from config import Settings

SLOT_S = 1 / SLOTS_PER_S
"""The timer wheel runs items early by less than this time."""
HOST = "host"
DISK = "disk"
"""Names of the tiers in vLLM's counters of cached tokens."""


class Offload(Struct, eq=False):
    """Stores and loads of a running sequence."""

    access: Access
    hashes: list[bytes]
    """Hashes of its blocks so far."""
    next_chunk: int = 0
    """Number of the first chunk that was not offered to the tiers."""
    load_end_s: float = 0.0
    """Time at which the loaded blocks are there."""


class TieredCache(KVCacheManager):
    """A `KVCacheManager` with the tiers of `options`."""

    def __init__(
        self,
        num_blocks: int,
        hasher: BlockHasher,
        recorder: Recorder,
        *args: Any,
        options: OffloadOptions,
        **kwargs: Any,
    ) -> None:
        kwargs["store"] = None  # the tiers replace it
        super().__init__(num_blocks, hasher, recorder, *args, **kwargs)
        self.counts_lookups = options.has_prefix_cache
        self._options = options
        self._chunk_blocks = options.blocks_per_chunk
        self.tiers = Tiers(
            options,
            OffloadCounters(
                recorder,
                has_disk=options.disk_chunks > 0,
                has_threshold=options.store_threshold >= 2,
            ),
        )
        self._writer = EventWriter(self._wire, options.has_full_events, options.chunks)
        self._offloads: dict[CachedSequence, Offload] = {}
        self._unsent: dict[CachedSequence, list[tuple[Key, ...]]] = {}
        """Chunks that are stored after the step under way, by the sequence that computes them."""
        self._unstored: dict[CachedSequence, int] = {}
        """Sequences whose chunks had no room in the tiers, and their blocks to store."""
        self._hit: TierHit | None = None
        """Result of the latest lookup, which `begin` uses; None if the tiers play no part."""
        self._must_wait = False
        """True if another sequence loads the chunks of the latest lookup."""
        self._clock: Clock
        self._wheel: TimerWheel
        self._alarm = Alarm(self)

    @classmethod
    def maker(cls, settings: Settings) -> Callable[..., KVCacheManager]:
        """Returns a function with the arguments of `KVCacheManager`.

        Raises:
            ConfigError: the settings of the tiers cannot be used.
        """
        return partial(cls, options=offload_options(settings))

    def attach(self, clock: Clock, wheel: TimerWheel) -> None:
        """See `KVCacheManager`."""
        self._clock = clock
        self._wheel = wheel

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """See `KVCache`."""
        caches = {**super().caches, "KV offload, CPU": self.tiers.cpu}
        if self._writer.is_full:
            caches["KV offload, events"] = self._writer
        if self.tiers.disk is not None:
            caches["KV offload, disk"] = self.tiers.disk
        return caches

    # The scheduler's `Blocks`.

    def find(self, sequence: CachedSequence, tokens: int) -> int:
        """See `KVCache`; also looks up, in the tiers, the chunks after the cached blocks."""
        self._settle()
        if sequence.loaded:  # from an earlier lookup
            sequence.remote = False
        cached = super().find(sequence, tokens)
        self._hit = None
        self._must_wait = False
        prompt = sequence.prompt
        if sequence.remote:
            return cached
        first = cached // self._chunk_blocks
        hit = TierHit(first)
        if prompt.reads:
            hit = self.tiers.find(self._keys(prompt.hashes or ())[first:], first)
        end = (first + len(hit.keys)) * self._chunk_blocks
        if end - cached < self._chunk_blocks:
            hit = TierHit(first, is_cut=hit.is_cut)
            end = cached
        self._hit = hit
        sequence.loaded = (end - cached) * self.block_size
        if self._options.in_steps and sequence.loaded:
            sequence.remote = True
            if self._options.has_prefix_cache:
                self._must_wait = self.tiers.is_loading(hit.keys)
        return cached

    def fits(self, sequence: CachedSequence, tokens: int, cached: int, spare: int = 0) -> bool:
        """See `KVCache`; a prompt waits while another one loads its blocks."""
        if tokens and self._must_wait:
            return False
        return super().fits(sequence, tokens, cached, spare)

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """See `KVCacheManager`; also starts to load the blocks that `find` has found in tiers."""
        is_remote = sequence.remote
        if sequence.loaded:
            sequence.remote = False  # for the counters: only blocks of this pod are loaded
        super().begin(sequence, cached, count)
        sequence.remote = is_remote
        sequence.load_s = 0.0
        offload = Offload(self.tiers.cpu.new_access(), list(sequence.prompt.hashes or ()))
        self._offloads[sequence] = offload
        hit = self._hit
        self._hit = None
        if hit is None:
            return
        delay_s = 0.0
        if hit.keys:
            now_s = self._now()
            ready_s, offload.load_end_s = self.tiers.load(
                hit, sequence.loaded // self.block_size, now_s, offload.access
            )
            delay_s = ready_s - now_s
            sequence.load_s = offload.load_end_s - now_s
            offload.next_chunk = hit.first + len(hit.keys)
            for number, key in enumerate(hit.keys, hit.first):
                self._describe(sequence, offload, number, key)
            self._set_alarm()
        self.tiers.count_lookup(hit, delay_s)
        if not sequence.preemptions:
            self._count_sources(sequence, hit)

    def filled(self, sequence: CachedSequence) -> None:
        """See `KVCache`; also offers the full blocks to the tiers."""
        super().filled(sequence)
        self._offer(sequence, sequence.computed // self.block_size)

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        """See `KVCache`; blocks that a load writes are free at its end, as in vLLM."""
        offload = self._offloads.pop(sequence, None)
        self._unstored.pop(sequence, None)
        if offload is not None:
            self._send(sequence)
            self.tiers.cpu.finish(offload.access)
            if self._options.in_steps and offload.load_end_s > self._now() + SLOT_S:
                self._hold(sequence, offload.load_end_s)
                return
        super().release(sequence, held, findable)

    # The reply.

    def append(self, sequence: CachedSequence, count: int) -> bool:
        """See `KVCache`; a sequence that runs alone stores its blocks with the first token."""
        if sequence in self._unsent:
            self._send(sequence)
        return super().append(sequence, count)

    def step_over(self, due: Sequence[tuple[CachedSequence, int]]) -> None:
        """See `KVCacheManager`; also starts to store what the step has computed."""
        self._settle()
        for sequence in list(self._unsent):
            self._send(sequence)
        for sequence, blocks in list(self._unstored.items()):
            self._offer(sequence, blocks)
        super().step_over(due)

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """See `KVCache`; also notes the hashes of the reply."""
        first = sequence.cached_blocks
        if self._options.has_prefix_cache:
            super()._store(sequence, hashes)
        else:
            sequence.cached_blocks = first + len(hashes)
            sequence.last_hash = hashes[-1]
        offload = self._offloads.get(sequence)
        if offload is None or self._options.is_prompt_only:
            return
        if first + len(hashes) > len(offload.hashes):
            offload.hashes[first:] = hashes
            self._offer(sequence, first + len(hashes))

    # For operators.

    def reset(self, under_requests: bool = False, external: bool = False) -> bool:
        """See `KVCache`; `external` also empties the tier in host memory."""
        if external:
            self.tiers.reset()
            self._writer.reset()
            self._unsent.clear()
            for offload in self._offloads.values():
                offload.next_chunk = 0
        return super().reset(under_requests)

    # Tiers.

    def tick(self, now_s: float) -> float | None:
        """Ends the transfers that are over; returns the end of the next one."""
        self.tiers.settle(now_s)
        self._take_tier_events()
        if self.pending and not self.running:
            self.publish()
        next_s = self.tiers.next_s
        if next_s == inf:
            return None
        return next_s

    def _settle(self) -> None:
        self.tiers.settle(self._now() + SLOT_S)
        self._take_tier_events()

    def _now(self) -> float:
        return self._clock.now()

    def _keys(self, hashes: Sequence[bytes]) -> Sequence[Key]:
        """Returns the keys of the full chunks of a prompt."""
        return hashes[self._chunk_blocks - 1 :: self._chunk_blocks]

    def _offer(self, sequence: CachedSequence, blocks: int) -> None:
        """Offers the chunks within the first `blocks` blocks that the tiers have not seen."""
        offload = self._offloads.get(sequence)
        if offload is None or not sequence.caches:
            return
        self._unstored.pop(sequence, None)
        first = offload.next_chunk
        if self._options.is_prompt_only:
            blocks = min(blocks, sequence.prompt_tokens // self.block_size)
        keys = self._keys(offload.hashes[:blocks])[first:]
        if not keys:
            return
        stored = self.tiers.offer(keys, first, offload.access)
        self._take_tier_events()
        if stored is None:
            self._unstored[sequence] = blocks  # vLLM, too, tries again in the next step
            return
        offload.next_chunk = first + len(keys)
        if stored:
            self._unsent.setdefault(sequence, []).append(stored)
            for number, key in enumerate(keys, first):
                if key in stored:
                    self._describe(sequence, offload, number, key)

    def _send(self, sequence: CachedSequence) -> None:
        """Starts to store what a sequence has computed."""
        parts = self._unsent.pop(sequence, ())
        for keys in parts:
            self.tiers.store(keys, self._now())
        if parts:
            self._set_alarm()

    def _hold(self, sequence: CachedSequence, end_s: float) -> None:
        """Keeps the blocks of a sequence that has ended until `end_s`."""
        held = CachedSequence(sequence.prompt_tokens)
        held.blocks = sequence.blocks
        sequence.blocks = []
        del self.running[sequence]
        self.running[held] = None
        self.tiers.call_at(end_s, partial(super().release, held))
        self._set_alarm()

    def _count_sources(self, sequence: CachedSequence, hit: TierHit) -> None:
        """Counts the loaded tokens by tier."""
        missing_tokens = sequence.prompt_tokens - sequence.cached_tokens
        disk_tokens = hit.disk_chunks * self._chunk_blocks * self.block_size
        disk_tokens = min(disk_tokens, sequence.loaded)
        recorder = self._recorder
        recorder.looked_up_in_store(missing_tokens, sequence.loaded - disk_tokens, HOST)
        recorder.looked_up_in_store(0, disk_tokens, DISK)

    def _take_tier_events(self) -> None:
        events = self.tiers.take_events()
        if events and self._has_events:
            self.pending += self._writer.write(events)

    def _describe(self, sequence: CachedSequence, offload: Offload, number: int, key: Key) -> None:
        """Notes the blocks of chunk `number` for its events."""
        if not (self._has_events and self._writer.is_full):
            return
        first = number * self._chunk_blocks
        last = first + self._chunk_blocks
        parent_hash = None
        if first:
            parent_hash = self._wire([offload.hashes[first - 1]])[0]
        adapter = sequence.prompt.adapter
        event = BlockStored(
            block_hashes=self._wire(offload.hashes[first:last]),
            parent_block_hash=parent_hash,
            token_ids=self._token_ids(sequence, first * self.block_size, last * self.block_size),
            block_size=self.block_size,
            lora_id=adapter.id if adapter else None,
            medium=CpuTier.medium,
            lora_name=adapter.name if adapter else None,
            group_idx=0,
            kv_cache_spec_kind=SPEC_KIND,
        )
        self._writer.describe(key, event)

    def _set_alarm(self) -> None:
        next_s = self.tiers.next_s
        if next_s < self._alarm.due_s:
            self._alarm.due_s = next_s
            self._wheel.add(next_s, self._alarm)


class Alarm:
    """An item of the timer wheel that ends transfers; stale entries end themselves."""

    def __init__(self, cache: TieredCache) -> None:
        self.due_s = inf
        """Time of the next turn."""
        self._cache = cache

    def run_due(self, now_s: float) -> float | None:
        """Ends transfers; returns the time of the next turn."""
        if now_s < self.due_s - SLOT_S:
            return None
        next_s = self._cache.tick(now_s)
        self.due_s = inf
        if next_s is not None:
            self.due_s = next_s
        return next_s

    def fail(self, error: Exception) -> None:
        """Does nothing: the wheel logs the error."""
        self.due_s = inf
