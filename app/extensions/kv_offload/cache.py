"""A KV cache whose blocks are also stored in tiers, as by vLLM's OffloadingConnector.

Start with `TieredCache`. `Offloads` decides what sequences load and store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from app.core.base.clock.timer_wheel import SLOTS_PER_S
from app.core.engine.kvcache.cache import SPEC_KIND, KVCacheManager
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.events import BlockStored
from app.extensions.kv_offload.cpu_tier import CpuTier
from app.extensions.kv_offload.events import EventWriter
from app.extensions.kv_offload.metrics import OffloadCounters
from app.extensions.kv_offload.offloads import Offloads, StoredChunk
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
        self._offloads = Offloads(
            self.tiers, options, self.block_size, now=self._now, on_end_step=self._describe_step
        )
        self._clock: Clock
        self._wheel: TimerWheel
        self._alarm = Alarm(self)
        if options.in_steps:
            self.policies = [self._offloads]

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
        prompt = sequence.prompt
        hashes = prompt.hashes if prompt.reads else None
        self._offloads.look_up(sequence, hashes or (), cached)
        return cached

    def fits(self, sequence: CachedSequence, tokens: int, cached: int, spare: int = 0) -> bool:
        """See `KVCache`; a prompt waits while its blocks are on their way."""
        if self._offloads.must_wait:
            return False
        return super().fits(sequence, tokens, cached, spare)

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """See `KVCacheManager`; also starts to load the blocks that `find` has found in tiers."""
        is_remote = sequence.remote
        if sequence.loaded:
            sequence.remote = False  # for the counters: only blocks of this pod are loaded
        super().begin(sequence, cached, count)
        sequence.remote = is_remote
        hashes = list(sequence.prompt.hashes or ())
        hit = self._offloads.begin(sequence, hashes)
        if hit is None:
            return
        if hit.keys:
            self._describe(sequence, list(enumerate(hit.keys, hit.first)))
            self._set_alarm()
        if not sequence.preemptions:
            self._count_sources(sequence, hit)

    def filled(self, sequence: CachedSequence) -> None:
        """See `KVCache`; also offers the full blocks to the tiers."""
        super().filled(sequence)
        self._offer(sequence, sequence.computed // self.block_size)

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        """See `KVCache`."""
        self._offloads.release(sequence)
        if not self._options.in_steps:
            self._offloads.send(sequence)
            self._offloads.finish(sequence)
            self._offloads.offer(())
            self._set_alarm()
        super().release(sequence, held, findable)

    # The reply.

    def append(self, sequence: CachedSequence, count: int) -> bool:
        """See `KVCache`; a sequence that runs alone stores its blocks with the first token."""
        if self._offloads.has_unsent(sequence):
            self._offloads.send(sequence)
            self._set_alarm()
        return super().append(sequence, count)

    def step_over(self, due: Sequence[tuple[CachedSequence, int]]) -> None:
        """See `KVCacheManager`; also starts to store what the step has computed."""
        self._settle()
        self._offloads.step_over()
        self._set_alarm()
        super().step_over(due)

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """See `KVCache`; also notes the hashes of the reply."""
        first = sequence.cached_blocks
        if self._options.has_prefix_cache:
            super()._store(sequence, hashes)
        else:
            sequence.cached_blocks = first + len(hashes)
            sequence.last_hash = hashes[-1]
        if self._offloads.extend(sequence, first, hashes):
            self._offer(sequence, first + len(hashes))

    # For operators.

    def reset(self, under_requests: bool = False, external: bool = False) -> bool:
        """See `KVCache`; `external` also empties the tier in host memory."""
        if external:
            self._offloads.reset()
            self._writer.reset()
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
        """Ends the transfers that are over.

        The clock is up to a slot of the wheel behind the scheduler's time. A load that ends within
        the slot is still under way then, so that no other prompt loads the same blocks again.
        """
        self.tiers.settle(self._now())
        self._take_tier_events()

    def _now(self) -> float:
        return self._clock.now()

    def _offer(self, sequence: CachedSequence, blocks: int) -> None:
        """Offers the chunks within the first `blocks` blocks that the tiers have not seen.

        Where sequences share steps, the end of the step does.
        """
        if not sequence.caches:
            return
        self._offloads.filled(sequence, blocks)
        if not self._options.in_steps:
            self._describe_stored(self._offloads.offer([sequence]))

    def _describe_step(self, stored: Sequence[StoredChunk]) -> None:
        """Notes the blocks of the chunks of a step that was made."""
        self._describe_stored(stored)
        self._set_alarm()

    def _describe_stored(self, stored: Sequence[StoredChunk]) -> None:
        """Notes the blocks of chunks that will be stored."""
        self._take_tier_events()
        for sequence, number, key in stored:
            self._describe(sequence, [(number, key)])

    def _count_sources(self, sequence: CachedSequence, hit: TierHit) -> None:
        """Counts the loaded tokens by tier."""
        missing_tokens = sequence.prompt_tokens - sequence.cached_tokens
        host_tokens, disk_tokens = self._offloads.loaded_tokens(sequence, hit)
        recorder = self._recorder
        recorder.looked_up_in_store(missing_tokens, host_tokens, HOST)
        recorder.looked_up_in_store(0, disk_tokens, DISK)

    def _take_tier_events(self) -> None:
        events = self.tiers.take_events()
        if events and self._has_events:
            self.pending += self._writer.write(events)

    def _describe(self, sequence: CachedSequence, chunks: Sequence[tuple[int, Key]]) -> None:
        """Notes the blocks of chunks, by their numbers and keys, for the events of the chunks."""
        if not (self._has_events and self._writer.is_full):
            return
        hashes = self._offloads.hashes_of(sequence) if chunks else []
        for number, key in chunks:
            self._writer.describe(key, self._stored_chunk(sequence, hashes, number))

    def _stored_chunk(
        self, sequence: CachedSequence, hashes: Sequence[bytes], number: int
    ) -> BlockStored:
        """Returns the event of chunk `number` of a sequence, whose blocks have these hashes."""
        first = number * self._chunk_blocks
        last = first + self._chunk_blocks
        parent_hash = None
        if first:
            parent_hash = self._wire([hashes[first - 1]])[0]
        adapter = sequence.prompt.adapter
        return BlockStored(
            block_hashes=self._wire(list(hashes[first:last])),
            parent_block_hash=parent_hash,
            token_ids=self._token_ids(sequence, first * self.block_size, last * self.block_size),
            block_size=self.block_size,
            lora_id=adapter.id if adapter else None,
            medium=CpuTier.medium,
            lora_name=adapter.name if adapter else None,
            group_idx=0,
            kv_cache_spec_kind=SPEC_KIND,
        )

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
