"""Which chunks the sequences of an engine load and store. Start with `Offloads`.

The server (`TieredCache`) and `simulate` decide by this code. Each keeps its own blocks and hashes,
and hands them over. When a step is made, the full blocks of its prompts are offered to the tiers;
they are stored after it. A prompt loads the blocks that only the tiers have: it holds its blocks
meanwhile, and other sequences go on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeAlias

from msgspec import Struct

from app.core.engine.batch import Batch
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.extensions.kv_offload.cpu_tier import Access
from app.extensions.kv_offload.options import OffloadOptions
from app.extensions.kv_offload.policies import Key
from app.extensions.kv_offload.tiers import ROUNDING_S, TierHit, Tiers

_place = attrgetter("place")


class Offload(Struct, eq=False):
    """Stores and loads of a sequence, from its first admission to its end."""

    access: Access
    hashes: list[bytes]
    """Hashes of its blocks so far."""
    next_chunk: int = 0
    """Number of the first chunk that was not offered to the tiers."""
    load_end_s: float = 0.0
    """Time at which the loaded blocks are there."""
    loading: Sequence[Key] = ()
    """Chunks that the scheduler waits for."""
    unsent: int = 0
    """Number of stores that wait for the end of a step."""
    busy_s: float = 0.0
    """Time at which the latest of its transfers ends."""


class Unsent(Struct, frozen=True):
    """Chunks that are stored after the step that computes them."""

    offload: Offload
    keys: tuple[Key, ...]


StoredChunk: TypeAlias = tuple[CachedSequence, int, Key]
"""A chunk that will be stored: the sequence, the number, and the key of the chunk."""


class Offloads(SchedulingPolicy[Any]):
    """Loads and stores of all sequences of an engine; a policy of the scheduler."""

    keeps_tokens = True

    def __init__(
        self,
        tiers: Tiers,
        options: OffloadOptions,
        block_size: int,
        now: Callable[[], float],
        on_end_step: Callable[[Sequence[StoredChunk]], None],
    ) -> None:
        """`now` returns seconds. `on_end_step` gets the chunks that a step will store."""
        self._tiers = tiers
        self._options = options
        self._block_size = block_size
        self._now = now
        self._on_end_step = on_end_step
        self._chunk_blocks = options.blocks_per_chunk
        self._offloads: dict[CachedSequence, Offload] = {}
        self._filled: dict[CachedSequence, int] = {}
        """Sequences in the step being made, and their blocks to offer."""
        self._unstored: dict[CachedSequence, int] = {}
        """Sequences whose chunks had no room in the tiers, and their blocks to offer again."""
        self._ended: list[tuple[Offload, int]] = []
        """Sequences that have ended since the latest step was made, and blocks to offer again."""
        self._offered: list[Unsent] = []
        """Chunks that the step being made computes."""
        self._unsent: deque[list[Unsent]] = deque()
        """Chunks of each step under way, the oldest step first."""
        self._loading: Counter[Key] = Counter()
        """Chunks that the scheduler waits for, with the number of sequences.

        A transfer may end a little before: the server's timers run early.
        """
        self._hit: TierHit | None = None
        """Result of the latest lookup, which `begin` uses; None if the tiers play no part."""
        self.must_wait = False
        """True if the sequence of the latest lookup waits for a transfer.

        The transfer began before a preemption, or it moves chunks that the sequence would load.
        """

    @property
    def next_s(self) -> float:  # type: ignore[override]  # it follows the transfers
        """See `SchedulingPolicy`."""
        return self._tiers.next_s

    @property
    def is_busy(self) -> bool:
        """True while a transfer is under way, or waits for the end of a step."""
        return self._tiers.next_s < inf or any(self._unsent)

    def look_up(self, sequence: CachedSequence, hashes: Sequence[bytes], cached: int) -> None:
        """Looks up the chunks after the `cached` blocks of a prompt, which has these hashes.

        Sets `loaded` of the sequence, and `remote` if the scheduler is to wait for the load.
        """
        self._hit = None
        self.must_wait = False
        if sequence.remote:
            return
        offload = self._offloads.get(sequence)
        if offload is not None:
            if self._has_transfer(offload):
                self.must_wait = True
                return
            if self._options.offers_again:
                offload.next_chunk = 0
        first = cached // self._chunk_blocks
        keys = self._keys(hashes)
        self._tiers.cpu.touch(keys)
        if len(keys) * self._chunk_blocks - cached < self._chunk_blocks:
            keys = ()
        hit = self._tiers.find(keys[first:], first)
        self._tiers.cpu.looked_up(keys[first : first + len(hit.keys) + hit.is_cut])
        end = (first + len(hit.keys)) * self._chunk_blocks
        if hit.is_pending:
            self.must_wait = True
            return
        if end - cached < self._chunk_blocks:
            hit = TierHit(first, is_cut=hit.is_cut)
            end = cached
        self._hit = hit
        sequence.loaded = (end - cached) * self._block_size
        if self._options.in_steps and sequence.loaded:
            sequence.remote = True
            if self._options.has_prefix_cache:
                self.must_wait = self._is_loading(hit.keys)

    def begin(self, sequence: CachedSequence, hashes: list[bytes]) -> TierHit | None:
        """Starts to load the chunks that `look_up` has found for a sequence that is admitted.

        Returns these chunks; None if the tiers play no part. Sets `load_s` of the sequence.
        """
        sequence.load_s = 0.0
        tiers = self._tiers
        offload = self._offloads.get(sequence)
        if offload is None:
            offload = Offload(tiers.cpu.new_access(), hashes)
            self._offloads[sequence] = offload
        offload.hashes = hashes
        offload.load_end_s = 0.0
        hit = self._hit
        self._hit = None
        if hit is None:
            return None
        delay_s = 0.0
        if hit.keys:
            now_s = self._now()
            blocks = sequence.loaded // self._block_size
            ready_s, offload.load_end_s = tiers.load(hit, blocks, now_s, offload.access)
            offload.busy_s = offload.load_end_s
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

    def filled(self, sequence: CachedSequence, blocks: int) -> None:
        """Notes that a step computes a sequence up to its first `blocks` blocks.

        A load of the sequence is over by then, so that its chunks can be evicted.
        """
        offload = self._offloads.get(sequence)
        if offload is None:
            return
        self._end_load(offload)
        if self._options.is_prompt_only:
            blocks = min(blocks, sequence.prompt_tokens // self._block_size)
        self._filled[sequence] = blocks

    def offer(self, scheduled: Sequence[CachedSequence]) -> list[StoredChunk]:
        """Offers the filled chunks of sequences, and chunks of sequences that have ended.

        Returns the chunks that will be stored.
        """
        stored: list[StoredChunk] = []
        for sequence in scheduled:
            blocks = self._filled.pop(sequence, self._unstored.get(sequence))
            offload = self._offloads.get(sequence)
            if blocks is None or offload is None:
                continue
            self._tiers.settle(max(self._now(), offload.load_end_s))
            self._unstored.pop(sequence, None)
            chunks = self._offer(offload, blocks)
            if chunks is None:
                self._unstored[sequence] = blocks
                continue
            stored += [(sequence, number, key) for number, key in chunks]
        ended = self._ended
        self._ended = []
        for offload, blocks in ended:
            self._offer(offload, blocks)
        for offload, _ in ended:
            self._tiers.cpu.finish(offload.access)
        return stored

    def skip_step(self) -> None:
        """Offers the chunks of sequences that have ended."""
        self.end_step(Batch())

    def end_step(
        self, batch: Batch[Any], *, has_preempted: bool = False, runs_out: bool = False
    ) -> None:
        """Offers the chunks of a step that was made.

        They are stored when the step is over, or at once without a step under way.
        """
        self._tiers.settle(self._now())
        scheduled = list(self._filled)
        if self._unstored:
            scheduled += [sequence for sequence in batch.decodes if sequence in self._unstored]
        stored = self.offer(sorted(scheduled, key=_place))
        if batch.tokens:
            self._unsent.append([])
        if self._offered:
            offered = self._offered
            self._offered = []
            if self._unsent:
                self._unsent[-1] += offered
            else:
                self._start(offered)
        self._on_end_step(stored)

    def step_over(self) -> None:
        """Starts to store what the oldest step under way has computed."""
        if self._unsent:
            self._start(self._unsent.popleft())

    def send(self, sequence: CachedSequence) -> None:
        """Starts to store what a sequence has computed that runs alone."""
        offload = self._offloads.get(sequence)
        if offload is not None and offload.unsent:
            self._start([unsent for unsent in self._offered if unsent.offload is offload])
            self._offered = [unsent for unsent in self._offered if unsent.offload is not offload]

    def has_unsent(self, sequence: CachedSequence) -> bool:
        """Returns whether chunks of a sequence wait to be stored."""
        offload = self._offloads.get(sequence)
        return offload is not None and offload.unsent > 0

    def release(self, sequence: CachedSequence) -> None:
        """Notes that a sequence gives its blocks back, at a preemption or after its end."""
        offload = self._offloads.get(sequence)
        if offload is not None:
            self._end_load(offload)
        self._filled.pop(sequence, None)
        self._unstored.pop(sequence, None)

    def finish(self, sequence: CachedSequence) -> None:
        """Notes the end of a sequence."""
        offload = self._offloads.pop(sequence, None)
        self._filled.pop(sequence, None)
        blocks = self._unstored.pop(sequence, 0)
        if offload is not None:
            self._end_load(offload)
            if not self._options.rules.offers_ended:
                blocks = 0
            self._ended.append((offload, blocks))

    def reset(self) -> None:
        """Empties the host's tier; running sequences offer their chunks again."""
        self._tiers.reset()
        self._offered.clear()
        for unsent in self._unsent:
            unsent.clear()
        for offload in self._offloads.values():
            offload.next_chunk = 0
            offload.unsent = 0
            offload.busy_s = 0.0

    def _offer(self, offload: Offload, blocks: int) -> list[tuple[int, Key]] | None:
        """Offers the chunks within the first `blocks` blocks that the tiers have not seen.

        Returns the numbers and the keys of the chunks that will be stored; None if the tiers have
        no room, so that the next step of the sequence offers them again, as in vLLM.
        """
        first = offload.next_chunk
        keys = self._keys(offload.hashes[:blocks])[first:]
        if not keys:
            return []
        stored = self._tiers.offer(keys, first, offload.access)
        if stored is None:
            return None
        offload.next_chunk = first + len(keys)
        if not stored:
            return []
        self._tiers.cpu.touch(self._keys(offload.hashes))
        offload.unsent += 1
        self._offered.append(Unsent(offload, stored))
        accepted = set(stored)
        return [(number, key) for number, key in enumerate(keys, first) if key in accepted]

    def _start(self, stores: Sequence[Unsent]) -> None:
        now_s = self._now()
        for store in stores:
            offload = store.offload
            offload.unsent -= 1
            offload.busy_s = max(offload.busy_s, self._tiers.store(store.keys, now_s))

    def _has_transfer(self, offload: Offload) -> bool:
        """Returns whether a transfer of the sequence is under way."""
        if not self._options.in_steps:
            return False
        return offload.unsent > 0 or offload.busy_s > self._now() + ROUNDING_S

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
