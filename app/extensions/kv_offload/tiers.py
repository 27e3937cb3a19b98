"""The tiers of one rank, and the transfers between them. Start with `Tiers`.

A transfer takes its bytes divided by the bandwidth, after earlier ones in the same direction.
Chunks move between devices and host, and between host and disk, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from app.extensions.kv_offload.cpu_tier import Access, CpuTier, TierEvent
from app.extensions.kv_offload.disk_tier import DiskTier
from app.extensions.kv_offload.policies import Key

if TYPE_CHECKING:
    from app.extensions.kv_offload.options import OffloadOptions

ROUNDING_S = 1e-9
"""Tolerance for sums of durations."""


class Lane:
    """Transfers in one direction, one after another."""

    def __init__(self, bandwidth: float) -> None:
        """`bandwidth` is in bytes per second."""
        self._bandwidth = bandwidth
        self._free_s = -inf

    def seconds(self, size_bytes: float) -> float:
        """Returns the duration of a transfer."""
        return size_bytes / self._bandwidth

    def reserve(self, from_s: float, size_bytes: float) -> float:
        """Adds a transfer that may begin at `from_s`; returns its end."""
        self._free_s = max(from_s, self._free_s) + self.seconds(size_bytes)
        return self._free_s


class TierHit(Struct):
    """Chunks of a prompt that the tiers have, from chunk `first` on."""

    first: int
    keys: Sequence[Key] = ()
    on_disk: Sequence[bool] = ()
    """For each chunk, True if no other tier has it."""
    is_cut: bool = False
    """True if the next chunk is in no tier, or cannot be loaded now."""
    is_pending: bool = False
    """True if one of the chunks is not written yet: a scheduler looks them up again later."""

    @property
    def disk_chunks(self) -> int:
        """Number of chunks that are only on disk."""
        return sum(self.on_disk)


class TransferCounters(Protocol):
    """Counts lookups and transfers: `OffloadCounters` for `/metrics`, or sums of a simulation."""

    def looked_up(self, host: tuple[int, int], disk: tuple[int, int], delay_s: float) -> None:
        """Counts a lookup: queried and found chunks of each tier."""

    def moved(self, is_load: bool, size_bytes: float, seconds: float) -> None:
        """Counts a transfer between devices and host."""

    def offered(self, has_failed: bool, tier: CpuTier) -> None:
        """Counts the allocations of the tier, and clears them."""

    def used(self, tier: CpuTier) -> None:
        """Receives the tier after each change of its use."""

    def disk_began(self, is_read: bool, jobs: int, share: float) -> None:
        """Counts `jobs` more transfers of the disk under way."""

    def disk_moved(self, is_read: bool, size_bytes: float, seconds: float) -> None:
        """Counts a transfer between host and disk."""

    def disk_reset(self) -> None:
        """Called when transfers are forgotten."""


class Tiers:
    """The host's tier and the tier on disk, as vLLM's `TieringOffloadingManager`.

    Differences from vLLM: A request that waits for a chunk from disk already has its blocks on the
    devices. The disk answers lookups at once.
    """

    def __init__(self, options: OffloadOptions, counters: TransferCounters) -> None:
        self.cpu = CpuTier(
            options.chunks,
            options.policy,
            options.store_threshold,
            orders_prompts=options.orders_prompts,
            chunk_uses=options.chunk_uses,
        )
        self.disk: DiskTier | None = None
        if options.disk_chunks:
            self.disk = DiskTier(options.disk_chunks, options.has_disk_events)
        self._options = options
        self._counters = counters
        self._loads = Lane(options.bandwidth)
        self._stores = Lane(options.bandwidth)
        self._reads = Lane(options.disk_bandwidth)
        self._writes = Lane(options.disk_bandwidth)
        self._ready_s: dict[Key, float] = {}
        """Chunks that transfers write into the host, with the ends of the transfers."""
        self._loading: dict[Key, int] = {}
        """Chunks that are loaded into devices, with the number of loads."""
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        """A heap: end of each transfer, its number, and the function to call."""
        self._numbers = count()

    @property
    def next_s(self) -> float:
        """End of the next transfer; infinity without one."""
        return self._jobs[0][0] if self._jobs else inf

    def settle(self, now_s: float) -> None:
        """Ends the transfers that are over."""
        while self._jobs and self._jobs[0][0] <= now_s + ROUNDING_S:
            heappop(self._jobs)[2]()

    def take_events(self) -> list[TierEvent]:
        """Returns and clears the events, those of the host first."""
        events = self.cpu.take_events()
        if self.disk is not None:
            events += self.disk.take_events()
        return events

    def find(self, keys: Sequence[Key], first: int) -> TierHit:
        """Returns the leading chunks among `keys` that can be loaded; changes nothing."""
        on_disk = []
        promoted = 0
        held = 0
        room = self.cpu.room
        is_cut = False
        is_pending = False
        for key in keys:
            chunk = self.cpu.get(key)
            is_free = chunk is not None and chunk.is_evictable
            is_new = chunk is None
            if is_new and (self.disk is None or key not in self.disk):
                is_cut = True
            elif chunk is not None and not chunk.is_ready:
                is_pending |= self._options.in_steps
                # Otherwise, the step that computes the chunk may be under way.
                is_cut = not self._options.in_steps and key not in self._ready_s
            elif (is_new or (promoted and is_free)) and promoted + held >= room:
                is_cut = True  # the host has no room for a chunk from disk
            if is_cut:
                break
            promoted += is_new
            held += is_free
            on_disk.append(is_new)
        return TierHit(first, keys[: len(on_disk)], on_disk, is_cut, is_pending)

    def is_loading(self, keys: Sequence[Key]) -> bool:
        """Returns whether another request loads one of the chunks."""
        return any(key in self._loading for key in keys)

    def count_lookup(self, hit: TierHit, delay_s: float) -> None:
        """Counts the lookup of an admitted request."""
        queries = len(hit.keys) + hit.is_cut
        disk_hits = hit.disk_chunks
        host_hits = len(hit.keys) - disk_hits
        disk = (disk_hits + hit.is_cut, disk_hits)
        self._counters.looked_up((queries, host_hits), disk, delay_s)

    def load(self, hit: TierHit, blocks: int, now_s: float, access: Access) -> tuple[float, float]:
        """Loads `blocks` blocks of chunks that `find` has just returned.

        Returns when all chunks are in the host, and when the blocks are on the devices.
        """
        cpu = self.cpu
        ready_s = now_s
        present = []
        missing = []
        for key, is_missing in zip(hit.keys, hit.on_disk, strict=True):
            if is_missing:
                missing.append(key)
                continue
            present.append(key)
            ready_s = max(ready_s, self._ready_s.get(key, now_s))
        cpu.hold(present)
        if missing:
            ready_s = max(ready_s, self._promote(missing, hit, now_s, access))
        cpu.note_load(hit.keys, hit.first, access)
        size_bytes = blocks * self._options.block_bytes
        end_s = self._loads.reserve(ready_s, size_bytes)
        for key in hit.keys:
            self._loading[key] = self._loading.get(key, 0) + 1
        self._add_job(end_s, partial(self._end_load, hit.keys, size_bytes))
        self._counters.used(cpu)
        return ready_s, end_s

    def offer(self, keys: Sequence[Key], first: int, access: Access) -> tuple[Key, ...] | None:
        """Returns the chunks of a prompt to store, as `CpuTier.prepare_store`."""
        stored = self.cpu.prepare_store(keys, first, access)
        self._counters.offered(stored is None, self.cpu)
        self._counters.used(self.cpu)
        return stored

    def store(self, keys: Sequence[Key], now_s: float) -> float:
        """Stores chunks that `offer` returned; returns when they are stored."""
        size_bytes = len(keys) * self._options.chunk_bytes
        end_s = self._stores.reserve(now_s, size_bytes)
        self._ready_s.update(dict.fromkeys(keys, end_s))
        self._add_job(end_s, partial(self._end_store, keys, size_bytes, end_s))
        return end_s

    def reset(self) -> None:
        """Empties the host's tier, and forgets transfers, as in vLLM. The disk keeps its chunks."""
        self.cpu.reset()
        self._jobs.clear()
        self._ready_s.clear()
        self._loading.clear()
        self._counters.used(self.cpu)
        self._counters.disk_reset()

    def _promote(self, keys: Sequence[Key], hit: TierHit, now_s: float, access: Access) -> float:
        """Reads chunks from disk into the host; returns when they are there."""
        missing = set(keys)
        for position, key in enumerate(hit.keys, hit.first):
            if key in missing:
                self.cpu.prepare_store([key], position, access)
        self.cpu.allocations.clear()  # vLLM counts those of stores only
        size_bytes = len(keys) * self._options.chunk_bytes
        end_s = self._reads.reserve(now_s, size_bytes)
        self._ready_s.update(dict.fromkeys(keys, end_s))
        self._counters.disk_began(True, 1, len(keys) / self.cpu.capacity)
        self._add_job(end_s, partial(self._end_promotion, keys, size_bytes))
        return end_s

    def _end_promotion(self, keys: Sequence[Key], size_bytes: float) -> None:
        assert self.disk is not None
        self._complete(keys)
        self.disk.use(keys)
        self.cpu.hold(keys)
        self._counters.disk_began(True, -1, -len(keys) / self.cpu.capacity)
        self._counters.disk_moved(True, size_bytes, self._reads.seconds(size_bytes))
        self._counters.used(self.cpu)

    def _end_load(self, keys: Sequence[Key], size_bytes: float) -> None:
        self.cpu.release(keys)
        for key in keys:
            self._loading[key] -= 1
            if not self._loading[key]:
                del self._loading[key]
        self._counters.moved(True, size_bytes, self._loads.seconds(size_bytes))
        self._counters.used(self.cpu)

    def _end_store(self, keys: Sequence[Key], size_bytes: float, now_s: float) -> None:
        self._complete(keys)
        self._counters.moved(False, size_bytes, self._stores.seconds(size_bytes))
        if self.disk is not None:
            self.cpu.hold(keys)
            end_s = self._writes.reserve(now_s, size_bytes)
            self._counters.disk_began(False, 1, len(keys) / self.cpu.capacity)
            self._add_job(end_s, partial(self._end_cascade, keys, size_bytes))
        self._counters.used(self.cpu)

    def _end_cascade(self, keys: Sequence[Key], size_bytes: float) -> None:
        assert self.disk is not None
        self.cpu.release(keys)
        self.disk.store(keys)
        self._counters.disk_began(False, -1, -len(keys) / self.cpu.capacity)
        self._counters.disk_moved(False, size_bytes, self._writes.seconds(size_bytes))
        self._counters.used(self.cpu)

    def _complete(self, keys: Sequence[Key]) -> None:
        self.cpu.complete_store(keys)
        for key in keys:
            self._ready_s.pop(key, None)

    def _add_job(self, end_s: float, finish: Callable[[], None]) -> None:
        heappush(self._jobs, (end_s, next(self._numbers), finish))
