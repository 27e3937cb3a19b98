"""The KV cache of a hybrid model: one table of blocks for each group, from one pool.

Behaves as vLLM 0.32's hybrid coordinator with groups of equal block size. Start with
`GroupedCache`. The scheduler counts positions: a position has one block in every group.

Differences from vLLM: A prompt is admitted only if the pool has room for all its chunks, which may
take a few blocks more where other sequences use its hits. A chunk that ends inside a block leaves
no state of linear attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.kvcache.block_pool import Block
from app.core.engine.kvcache.cache import MEDIUM, KVCacheManager
from app.core.engine.kvcache.events import BlockRemoved, BlockStored
from app.extensions.cache_groups.lookup import GroupLookup, Hit, group_key, split_key
from app.extensions.cache_groups.options import CacheOptions, cache_options
from app.extensions.cache_groups.policies import Row, policy_of

if TYPE_CHECKING:
    from app.core.engine.kvcache.cached_sequence import CachedSequence
    from app.core.engine.kvcache.hashing import BlockHasher
    from config import Settings


class Tables(Struct, eq=False):
    """Blocks of a running sequence.

    Of each row, the first `freed` blocks are freed. More become free at `trim_at` computed tokens.
    `boundaries` are the positions, in blocks, where later prompts may go on.
    """

    rows: list[Row]
    freed: list[int]
    boundaries: set[int]
    trim_at: int = 0


class GroupedCache(KVCacheManager):
    """A `KVCacheManager` with the groups of `options`."""

    def __init__(
        self, num_blocks: int, hasher: BlockHasher, *args: Any, options: CacheOptions, **kwargs: Any
    ) -> None:
        super().__init__(num_blocks, hasher, *args, **kwargs)
        size = self.block_size
        step_tokens = options.max_batched_tokens
        self.specs = options.groups
        self._interval = options.retention_blocks
        self._step_tokens = step_tokens
        self._policies = [
            policy_of(spec, size, step_tokens, options.max_model_len) for spec in self.specs
        ]
        kinds = [spec.kind for spec in self.specs]
        self._main = kinds.index("full_attention")
        self._has_states = "mamba" in kinds
        self._lookup = GroupLookup(self.pool, self.specs, self._policies)
        self._tables: dict[CachedSequence, Tables] = {}
        self._hit = Hit([[] for _ in self.specs])
        """Result of the latest lookup, which `fits` and `begin` use."""
        self.capacity = self.pool.capacity // len(self.specs)

    @classmethod
    def maker(cls, settings: Settings) -> Callable[..., KVCacheManager]:
        """Returns a function with the arguments of `KVCacheManager`.

        Raises:
            ConfigError: the settings of the groups cannot be used.
        """
        return partial(cls, options=cache_options(settings))

    @property
    def free(self) -> int:
        """Number of positions that certainly have a free block for each group."""
        return self.pool.free // len(self.specs)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a sequence."""
        step_blocks = -(-self._step_tokens // self.block_size)
        low = 0
        high = self.pool.capacity
        while low < high:
            middle = (low + high + 1) // 2
            blocks = sum(policy.held(middle, step_blocks) for policy in self._policies)
            if blocks <= self.pool.capacity:
                low = middle
            else:
                high = middle - 1
        return low * self.block_size

    # The scheduler's `Blocks`.

    def find(self, sequence: CachedSequence, tokens: int) -> int:
        """See `KVCache`; a prefix counts if each group has the blocks that a hit reads."""
        super().find(sequence, tokens)
        prompt = sequence.prompt
        hashes = prompt.hashes if prompt.reads else None
        self._hit = self._lookup.find((hashes or [])[: (tokens - 1) // self.block_size])
        if self.store is not None and sequence.loaded:
            sequence.loaded = self.store.find(prompt, self._hit.blocks * self.block_size)
        return self._hit.blocks

    def fits(self, sequence: CachedSequence, tokens: int, cached: int, spare: int = 0) -> bool:
        """See `KVCache`; groups that free blocks on the way need fewer."""
        needed = spare * len(self.specs)
        if tokens:
            blocks = -(-tokens // self.block_size)
            computed = self._computed(sequence, cached)
            for policy, row in zip(self._policies, self._hit.rows, strict=True):
                needed += policy.needed(blocks, computed, row)
        return needed <= self.pool.free

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """See `KVCache`; first uses the hits of all groups, as a new block may replace one."""
        super().begin(sequence, cached, 0)
        computed = self._computed(sequence, cached)
        hit = self._hit
        tables = Tables(hit.rows, [], {(sequence.prompt_tokens - 1) // self.block_size})
        if hit.longest > hit.blocks:
            tables.boundaries.add(hit.longest)
        self._tables[sequence] = tables
        self._hit = Hit([[] for _ in self.specs])
        for policy, row in zip(self._policies, tables.rows, strict=True):
            unneeded = policy.unneeded(computed)
            tables.freed.append(unneeded)
            row[:unneeded] = [None] * unneeded
            self.pool.use([block for block in row if block is not None])
        sequence.blocks = self._main_row(tables)
        self._note_trim(tables)
        self._extend(sequence, tables, cached + count, computed // self.block_size)

    def grow(self, sequence: CachedSequence, count: int) -> None:
        """Assigns blocks for `count` more positions."""
        start = len(sequence.blocks)
        self._extend(sequence, self._tables[sequence], start + count, start)

    def filled(self, sequence: CachedSequence) -> None:
        """See `KVCache`; also frees what the next tokens do not need."""
        super().filled(sequence)
        self._trim(sequence, sequence.computed)

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        """Frees the blocks of a sequence, group by group."""
        tables = self._tables.pop(sequence, None)
        if tables is None:
            return
        del self.running[sequence]
        for row in tables.rows:
            self.pool.release([block for block in row if block is not None])
        sequence.blocks = []

    # Sequences that run alone.

    def allocate(self, sequence: CachedSequence) -> None:
        """Takes the blocks of the prompt in chunks, as vLLM's scheduler does."""
        size = self.block_size
        tokens = sequence.prompt_tokens
        cached = self.find(sequence, tokens)
        junction = self._hit.longest * size
        start = cached * size + sequence.loaded
        is_first = True
        while start < tokens:
            end = tokens if sequence.remote else min(tokens, start + self._step_tokens)
            whole_end = end // size * size
            if self._has_states and end < tokens and whole_end > start:
                end = whole_end
            if self._has_states and start < junction < end:
                end = junction
            if is_first:
                self.begin(sequence, cached, -(-end // size) - cached)
            else:
                self.grow(sequence, -(-end // size) - len(sequence.blocks))
            is_first = False
            sequence.computed = end
            self.filled(sequence)
            start = end
        if self.pending:
            self._steps.append(self.take_events())

    def append(self, sequence: CachedSequence, count: int) -> bool:
        """See `KVCache`."""
        tokens = sequence.prompt_tokens + sequence.reply_tokens + count - 1
        missing = -(-tokens // self.block_size) - len(sequence.blocks)
        has_room = missing <= self.free
        if has_room and missing > 0:
            self.grow(sequence, missing)
        sequence.reply_tokens += count
        self.cache_reply(sequence, tokens)
        self._trim(sequence, tokens)
        return has_room

    def step_over(self, due: Sequence[tuple[CachedSequence, int]]) -> None:
        """See `KVCacheManager`; also frees blocks outside the windows."""
        super().step_over(due)
        for sequence, _ in due:
            self._trim(sequence, sequence.prompt_tokens + sequence.reply_tokens - 1)

    def discard(self) -> None:
        """See `KVCache`."""
        super().discard()
        for tables in self._tables.values():
            for row in tables.rows:
                for block in row:
                    if block is not None:
                        block.hash = None

    # Groups.

    def _computed(self, sequence: CachedSequence, cached: int) -> int:
        """Returns the tokens of a prompt that need no computation."""
        if sequence.remote:
            return sequence.prompt_tokens
        return cached * self.block_size + sequence.loaded

    def _main_row(self, tables: Tables) -> list[Block]:
        """Returns the row of the first full attention group, which has all blocks."""
        return tables.rows[self._main]  # type: ignore[return-value]

    def _extend(self, sequence: CachedSequence, tables: Tables, end: int, start: int) -> None:
        """Assigns blocks up to position `end`.

        Linear attention keeps a state where a chunk ends. vLLM's scheduler therefore ends chunks
        before a prompt's last block, and where prompts begin to differ.
        """
        hashes = sequence.prompt.hashes
        if self._has_states and hashes is not None:
            stops = {boundary for boundary in tables.boundaries if boundary < end}
            if end * self.block_size >= len(sequence.prompt.token_ids):
                stops.add(end - 1)
            for stop in sorted(stops):
                if start < stop <= len(hashes):
                    self._take(tables, stop)
                    first = sequence.cached_blocks
                    if sequence.caches and stop > first:
                        self._store(sequence, hashes[first:stop])
                    self._trim(sequence, stop * self.block_size)
        self._take(tables, end)

    def _take(self, tables: Tables, end: int) -> None:
        for spec, row in zip(self.specs, tables.rows, strict=True):
            count = end - len(row)
            if count <= 0:
                continue
            if spec.kind == "mamba":  # one state, after all these tokens
                row += [None] * (count - 1)
                count = 1
            row += self.pool.take(count)

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """Caches the next blocks of a sequence in the groups that keep them."""
        tables = self._tables[sequence]
        first = sequence.cached_blocks
        last = first + len(hashes)
        for group, policy in enumerate(self._policies):
            mask = policy.mask_of_cached(first, last, tables.boundaries, self._interval)
            row = tables.rows[group]
            positions = []
            for position in range(first, min(last, len(row))):
                block = row[position]
                if block is not None and (mask is None or mask[position - first]):
                    self.pool.cache(block, group_key(hashes[position - first], group))
                    positions.append(position)
            if self._has_events:
                event = self._stored_in_group(sequence, hashes, group, positions)
                self.pending.append(event)
        sequence.cached_blocks = last
        sequence.last_hash = hashes[-1]

    def _stored_in_group(
        self, sequence: CachedSequence, hashes: list[bytes], group: int, positions: list[int]
    ) -> BlockStored:
        """Returns the event of a group.

        As in vLLM, it has the tokens of all blocks, and the hashes of the cached ones.
        """
        event = self._stored(sequence, hashes)
        spec = self.specs[group]
        first = sequence.cached_blocks
        extra_keys = event.extra_keys or ()
        return replace(
            event,
            block_hashes=[event.block_hashes[position - first] for position in positions],
            extra_keys=[extra_keys[position - first] for position in positions] or None,
            group_idx=group,
            kv_cache_spec_kind=spec.kind,
            kv_cache_spec_sliding_window=spec.window,
        )

    def _note_evicted(self, hashes: Sequence[bytes]) -> None:
        if self._has_events:
            for block_hash, group in map(split_key, hashes):
                self.pending.append(BlockRemoved(self._wire([block_hash]), MEDIUM, group))

    def _trim(self, sequence: CachedSequence, computed: int) -> None:
        """Frees the blocks that a sequence with `computed` tokens does not need, from the last."""
        tables = self._tables.get(sequence)
        if tables is None or computed < tables.trim_at:
            return
        for group, policy in enumerate(self._policies):
            row = tables.rows[group]
            end = min(policy.unneeded(computed), len(row))
            freed = tables.freed[group]
            if end > freed:
                self.pool.release([block for block in row[freed:end] if block is not None])
                row[freed:end] = [None] * (end - freed)
                tables.freed[group] = end
        self._note_trim(tables)

    def _note_trim(self, tables: Tables) -> None:
        trims = [
            policy.first_unneeded(freed + 1)
            for policy, freed in zip(self._policies, tables.freed, strict=True)
        ]
        tables.trim_at = min(trim for trim in trims if trim is not None)
