"""Which chunks the sequences of an engine load and store. Start with `Offloads`.

The server (`TieredCache`) and `simulate` decide by this code. Each keeps its own blocks and hashes,
and hands them over. Full blocks of prompts are offered to the tiers with the step that computes
them, and stored after it. A prompt loads the blocks that only the tiers have: it holds its blocks
meanwhile, and other sequences go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.extensions.kv_offload.cpu_tier import Access
from app.extensions.kv_offload.options import OffloadOptions
from app.extensions.kv_offload.policies import Key
from app.extensions.kv_offload.tiers import TierHit, Tiers


class Offload(Struct, eq=False):
    """Stores and loads of a running sequence."""

    access: Access
    hashes: list[bytes]
    """Hashes of its blocks so far."""
    next_chunk: int = 0
    """Number of the first chunk that was not offered to the tiers."""
    load_end_s: float = 0.0
    """Time at which the loaded blocks are there."""
    loading: Sequence[Key] = ()
    """Chunks that the scheduler waits for."""


class Offloads:
    """Loads and stores of all sequences of an engine. Times are in seconds."""

    def __init__(self, tiers: Tiers, options: OffloadOptions, block_size: int) -> None:
        self._tiers = tiers
        self._options = options
        self._block_size = block_size
        self._chunk_blocks = options.blocks_per_chunk
        self._offloads: dict[CachedSequence, Offload] = {}
        self._unsent: dict[CachedSequence, list[tuple[Key, ...]]] = {}
        """Chunks that are stored after the step under way, by the sequence that computes them."""
        self._unstored: dict[CachedSequence, int] = {}
        """Sequences whose chunks had no room in the tiers, and their blocks to store."""
        self._loading: Counter[Key] = Counter()
        """Chunks that the scheduler waits for, with the number of sequences.

        A transfer may end a little before: the server's timers run early.
        """
        self._hit: TierHit | None = None
        """Result of the latest lookup, which `begin` uses; None if the tiers play no part."""
        self.must_wait = False
        """True if another sequence loads the chunks of the latest lookup."""

    @property
    def unstored(self) -> list[tuple[CachedSequence, int]]:
        """Sequences whose chunks had no room, and their blocks to offer again."""
        return list(self._unstored.items())

    def look_up(self, sequence: CachedSequence, hashes: Sequence[bytes], cached: int) -> None:
        """Looks up the chunks after the `cached` blocks of a prompt, which has these hashes.

        Sets `loaded` of the sequence, and `remote` if the scheduler is to wait for the load.
        """
        self._hit = None
        self.must_wait = False
        if sequence.remote:
            return
        first = cached // self._chunk_blocks
        hit = self._tiers.find(self._keys(hashes)[first:], first)
        end = (first + len(hit.keys)) * self._chunk_blocks
        if end - cached < self._chunk_blocks:
            hit = TierHit(first, is_cut=hit.is_cut)
            end = cached
        self._hit = hit
        sequence.loaded = (end - cached) * self._block_size
        if self._options.in_steps and sequence.loaded:
            sequence.remote = True
            if self._options.has_prefix_cache:
                self.must_wait = self._is_loading(hit.keys)

    def begin(self, sequence: CachedSequence, hashes: list[bytes], now_s: float) -> TierHit | None:
        """Starts to load the chunks that `look_up` has found for a sequence that is admitted.

        Returns these chunks; None if the tiers play no part. Sets `load_s` of the sequence.
        """
        sequence.load_s = 0.0
        tiers = self._tiers
        offload = Offload(tiers.cpu.new_access(), hashes)
        self._offloads[sequence] = offload
        hit = self._hit
        self._hit = None
        if hit is None:
            return None
        delay_s = 0.0
        if hit.keys:
            blocks = sequence.loaded // self._block_size
            ready_s, offload.load_end_s = tiers.load(hit, blocks, now_s, offload.access)
            delay_s = ready_s - now_s
            sequence.load_s = offload.load_end_s - now_s
            offload.next_chunk = hit.first + len(hit.keys)
            if sequence.remote:
                offload.loading = hit.keys
                self._loading.update(hit.keys)
        tiers.count_lookup(hit, delay_s)
        return hit

    def loaded_tokens(self, sequence: CachedSequence, hit: TierHit) -> tuple[int, int]:
        """Returns the tokens that a sequence loads from the host and from disk."""
        disk_tokens = hit.disk_chunks * self._chunk_blocks * self._block_size
        disk_tokens = min(disk_tokens, sequence.loaded)
        return sequence.loaded - disk_tokens, disk_tokens

    def hashes_of(self, sequence: CachedSequence) -> list[bytes]:
        """Returns the hashes of the blocks of a running sequence so far."""
        return self._offloads[sequence].hashes

    def extend(self, sequence: CachedSequence, first: int, hashes: list[bytes]) -> bool:
        """Notes the hashes of a reply from block `first` on; returns whether any is new."""
        offload = self._offloads.get(sequence)
        if offload is None or self._options.is_prompt_only:
            return False
        if first + len(hashes) <= len(offload.hashes):
            return False
        offload.hashes[first:] = hashes
        return True

    def offer(self, sequence: CachedSequence, blocks: int, now_s: float) -> list[tuple[int, Key]]:
        """Offers the chunks within the first `blocks` blocks that the tiers have not seen.

        A load of the sequence is over by then, so that its chunks can be evicted. Returns the
        numbers and the keys of the chunks that will be stored.
        """
        offload = self._offloads.get(sequence)
        if offload is None:
            return []
        self._tiers.settle(max(now_s, offload.load_end_s))
        self._end_load(offload)
        self._unstored.pop(sequence, None)
        first = offload.next_chunk
        if self._options.is_prompt_only:
            blocks = min(blocks, sequence.prompt_tokens // self._block_size)
        keys = self._keys(offload.hashes[:blocks])[first:]
        if not keys:
            return []
        stored = self._tiers.offer(keys, first, offload.access)
        if stored is None:
            self._unstored[sequence] = blocks  # vLLM, too, tries again in the next step
            return []
        offload.next_chunk = first + len(keys)
        if not stored:
            return []
        self._unsent.setdefault(sequence, []).append(stored)
        return [(number, key) for number, key in enumerate(keys, first) if key in stored]

    def has_unsent(self, sequence: CachedSequence) -> bool:
        """Returns whether chunks of a sequence wait for the end of a step."""
        return sequence in self._unsent

    def send(self, sequence: CachedSequence, now_s: float) -> None:
        """Starts to store what a sequence has computed."""
        for keys in self._unsent.pop(sequence, ()):
            self._tiers.store(keys, now_s)

    def send_all(self, now_s: float) -> None:
        """Starts to store what all sequences have computed."""
        for sequence in list(self._unsent):
            self.send(sequence, now_s)

    def end(self, sequence: CachedSequence, now_s: float) -> Offload | None:
        """Notes the end of a sequence, or its preemption; returns its stores and loads."""
        offload = self._offloads.pop(sequence, None)
        self._unstored.pop(sequence, None)
        if offload is not None:
            self._end_load(offload)
            self.send(sequence, now_s)
            self._tiers.cpu.finish(offload.access)
        return offload

    def reset(self) -> None:
        """Empties the host's tier; running sequences offer their chunks again."""
        self._tiers.reset()
        self._unsent.clear()
        for offload in self._offloads.values():
            offload.next_chunk = 0

    def _is_loading(self, keys: Sequence[Key]) -> bool:
        """Returns whether another sequence loads one of the chunks."""
        return self._tiers.is_loading(keys) or any(key in self._loading for key in keys)

    def _end_load(self, offload: Offload) -> None:
        """Notes that the scheduler waits no longer for the chunks of a sequence."""
        for key in offload.loading:
            self._loading[key] -= 1
            if not self._loading[key]:
                del self._loading[key]
        offload.loading = ()

    def _keys(self, hashes: Sequence[bytes]) -> Sequence[Key]:
        """Returns the keys of the full chunks of a prompt."""
        return hashes[self._chunk_blocks - 1 :: self._chunk_blocks]
