"""The KV cache of a hybrid model: one table of blocks for each group, from one pool.

Behaves as vLLM 0.32's hybrid coordinator with groups of equal block size. Start with
`GroupedCache`. A position has one block in every group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.kvcache.cache import MEDIUM, KVCacheManager
from app.core.engine.kvcache.events import BlockRemoved, BlockStored
from app.extensions.cache_groups.lookup import GroupLookup, Hit, group_key, split_key
from app.extensions.cache_groups.options import CacheOptions, cache_options
from app.extensions.cache_groups.policies import Row, policy_of
from app.extensions.cache_groups.scheduling import GroupScheduling
from app.extensions.cache_groups.state_chunks import StateChunks

if TYPE_CHECKING:
    from app.core.engine.kvcache.cached_sequence import CachedSequence
    from app.core.engine.kvcache.hashing import BlockHasher
    from config import Settings


class Tables(Struct, eq=False):
    """Blocks of a running sequence.

    Of each row, the first `freed` blocks are freed. More become free at `trim_at` computed tokens.
    `boundaries` are the positions, in blocks, where later prompts may go on, and `junction` is the
    position where the prompt begins to differ from others, or 0. In step `step`, the latest one of
    the sequence, `step_start` tokens were computed before. Of the blocks of each row, the first
    `skipped` ones were found at the admission, or are before a window: they are not cached again.
    The block at `last_state` has the state before the latest one.
    """

    rows: list[Row]
    freed: list[int]
    boundaries: set[int]
    junction: int = 0
    trim_at: int = 0
    step: int = -1
    step_start: int = 0
    skipped: list[int] = []
    last_state: int = -1


def _run_start(row: Row, first: int, end: int) -> int:
    """Returns where the last run of blocks without a gap begins in `row[first:end]`."""
    start = end
    while start > first and row[start - 1] is not None:
        start -= 1
    return start


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
        self._in_steps = options.in_steps
        self._shares_known_states = options.shares_known_states
        self._chunks = StateChunks(
            block_size=size,
            max_prompt_tokens=options.max_prompt_tokens,
            checkpoints_before_end=options.checkpoints_before_end,
        )
        self._frees_all_skipped_states = options.frees_all_skipped_states
        self._reconciles_hits = options.reconciles_hits
        self._rules = options.rules
        depth = 1 if options.rules.frees_under_way else options.depth
        self._policies = [
            policy_of(spec, size, depth * step_tokens, options.max_model_len) for spec in self.specs
        ]
        kinds = [spec.kind for spec in self.specs]
        self._main = kinds.index("full_attention")
        self._has_states = "mamba" in kinds
        self._lookup = GroupLookup(self.pool, self.specs, self._policies)
        self._tables: dict[CachedSequence, Tables] = {}
        self._hit = Hit([[] for _ in self.specs])
        """Result of the latest lookup, which `fits` and `begin` use."""
        self._new_states: set[bytes | None] = set()
        """Keys of states that were cached since the latest step began: prompts do not go on there,
        even if an earlier state has the same key.
        """
        self.capacity = self.pool.capacity // len(self.specs)
        self.policies = [GroupScheduling(self)]

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
        found = (hashes or [])[: (tokens - 1) // self.block_size]
        if self.store is not None and self._has_states and not self._reconciles_hits:
            diverging = self._lookup.diverging(found)
            if diverging is not None:
                sequence.loaded = self.store.find(prompt, diverging.blocks * self.block_size)
                self._hit = diverging
                if not sequence.loaded:  # only a load brings the states that are missing
                    self._hit = self._lookup.find(found)
                return self._hit.blocks
        self._hit = self._lookup.find(found)
        if self.store is not None and sequence.loaded:
            sequence.loaded = self.store.find(prompt, self._hit.blocks * self.block_size)
        return self._hit.blocks

    def fits(self, sequence: CachedSequence, tokens: int, cached: int, spare: int = 0) -> bool:
        """See `KVCache`; groups that free blocks on the way need fewer."""
        needed = spare
        if tokens:
            blocks = -(-tokens // self.block_size)
            computed = self._computed(sequence, cached)
            for policy, row in zip(self._policies, self._hit.rows, strict=True):
                if self._in_steps:
                    needed += policy.needed(policy.held(blocks, blocks), computed, row)
                else:
                    needed += policy.needed_at_once(blocks, computed, row)
        return needed <= self.pool.free

    def fits_chunk(self, sequence: CachedSequence, tokens: int, cached: int, spare: int) -> bool:
        """Returns whether the blocks of the first `tokens` tokens of a new sequence fit."""
        needed = spare
        blocks = -(-tokens // self.block_size)
        computed = self._computed(sequence, cached)
        for policy, row in zip(self._policies, self._hit.rows, strict=True):
            last = row[-1] if row else None
            if last is not None and last.hash in self._new_states:
                return False
            needed += policy.needed_in_step(blocks, computed, row)
        return needed <= self.pool.free

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """See `KVCache`; first uses the hits of all groups, as a new block may replace one.

        Each group then takes blocks for the loaded tokens that it needs, and after all of these
        the groups take blocks for new tokens.
        """
        super().begin(sequence, cached, 0)
        computed = self._computed(sequence, cached)
        hit = self._hit
        tables = Tables(hit.rows, [], {(sequence.prompt_tokens - 1) // self.block_size})
        if hit.longest > hit.blocks and self._rules.keeps_junctions:
            tables.boundaries.add(hit.longest)
            tables.junction = hit.longest
        self._tables[sequence] = tables
        self._hit = Hit([[] for _ in self.specs])
        for policy, row in zip(self._policies, tables.rows, strict=True):
            unneeded = policy.unneeded(computed)
            tables.freed.append(unneeded)
            row[:unneeded] = [None] * unneeded
            self.pool.use([block for block in row if block is not None])
        tables.skipped = [len(row) for row in tables.rows]
        if sequence.loaded:
            for row in tables.rows:
                row += self.pool.take(max(0, -(-computed // self.block_size) - len(row)))
        # A group of full attention has all blocks.
        sequence.blocks = tables.rows[self._main]  # type: ignore[assignment]
        self._note_trim(tables)
        self._take(tables, cached + count)

    def grow(self, sequence: CachedSequence, count: int) -> None:
        """Assigns blocks for `count` more positions."""
        self._take(self._tables[sequence], len(sequence.blocks) + count)

    def release(self, sequence: CachedSequence, held: int = 0, findable: int = 0) -> None:
        """Frees the blocks of a sequence, group by group."""
        for row in self._take_rows(sequence):
            self.pool.release([block for block in row if block is not None])

    def release_late(self, sequence: CachedSequence, held: int) -> None:
        """Frees the blocks of a sequence, those of the last group first."""
        rows = self._take_rows(sequence)
        self.pool.release([block for row in rows for block in row if block is not None])

    def _take_rows(self, sequence: CachedSequence) -> list[Row]:
        """Removes the tables of a sequence, and returns its blocks by group."""
        tables = self._tables.pop(sequence, None)
        if tables is None:
            return []
        del self.running[sequence]
        sequence.blocks = []
        return tables.rows

    def filled(self, sequence: CachedSequence) -> None:
        """See `KVCache`."""
        super().filled(sequence)
        self._note_known_state(sequence, sequence.computed)

    # What `GroupScheduling` asks for.

    def begin_step(self) -> None:
        """Lets prompts go on from all cached states."""
        self._new_states.clear()

    def clip(self, sequence: CachedSequence, start: int, tokens: int) -> int:
        """Returns how many of the `tokens` from `start` on a step computes."""
        if not self._has_states:
            return tokens
        return self._chunks.clip(sequence, start, tokens, junction=self._junction(sequence))

    def trim(self, sequence: CachedSequence, step: int, under_way: int) -> None:
        """Frees what a sequence no longer needs before it gets blocks in a step."""
        tables = self._tables[sequence]
        processed = sequence.computed
        is_read = under_way and tables.step >= step - under_way
        if is_read and not self._rules.frees_under_way:
            processed = tables.step_start
        tables.step = step
        tables.step_start = sequence.computed
        self._trim(sequence, processed)

    def lacks(self, sequence: CachedSequence, tokens: int) -> bool:
        """See `Blocks`; the groups need different numbers."""
        blocks = -(-tokens // self.block_size)
        rows = self._tables[sequence].rows
        missing = [
            policy.missing(blocks, row) for policy, row in zip(self._policies, rows, strict=True)
        ]
        return sum(missing) > self.pool.free

    def cache_known(self, sequence: CachedSequence, tokens: int) -> None:
        """Caches the full blocks among the first `tokens` tokens, as far as tokens are known."""
        known = sequence.prompt_tokens + sequence.reply_tokens
        if tokens > sequence.prompt_tokens:
            self.cache_reply(sequence, min(tokens, known))
            self._note_known_state(sequence, min(tokens, known))

    def tables(self, sequence: CachedSequence) -> list[list[int]]:
        """Returns the numbers of a running sequence's blocks, by group; 0 where one was freed."""
        rows = self._tables[sequence].rows
        return [[0 if block is None else block.number for block in row] for row in rows]

    # Sequences that run alone.

    def allocate(self, sequence: CachedSequence) -> None:
        """Takes the blocks of the prompt in chunks, as vLLM's scheduler does."""
        self.begin_step()
        size = self.block_size
        tokens = sequence.prompt_tokens
        cached = self.find(sequence, tokens)
        start = cached * size + sequence.loaded
        is_first = True
        while start < tokens:
            end = tokens
            if not sequence.remote:
                end = start + self.clip(sequence, start, min(tokens - start, self._step_tokens))
            if is_first:
                self.begin(sequence, cached, -(-end // size) - cached)
            else:
                self.grow(sequence, -(-end // size) - len(sequence.blocks))
            is_first = False
            sequence.computed = end
            self.filled(sequence)
            self._trim(sequence, end)
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

    def _note_known_state(self, sequence: CachedSequence, tokens: int) -> None:
        """Notes the state before the last token of a prompt as new; see `SchedulerRules`."""
        if self._shares_known_states or not self._has_states:
            return
        blocks = (sequence.prompt_tokens - 1) // self.block_size
        if not blocks or tokens // self.block_size != blocks:
            return
        for spec, row in zip(self.specs, self._tables[sequence].rows, strict=True):
            block = row[blocks - 1]
            if spec.kind == "mamba" and block is not None and block.hash is not None:
                self._new_states.add(block.hash)

    def _junction(self, sequence: CachedSequence) -> int:
        """Returns where a prompt begins to differ from others, in blocks; 0 if nowhere."""
        tables = self._tables.get(sequence)
        if tables is not None:
            return tables.junction
        if self._hit.longest > self._hit.blocks:  # the sequence is admitted
            return self._hit.longest
        return 0

    def _take(self, tables: Tables, end: int) -> None:
        for spec, row in zip(self.specs, tables.rows, strict=True):
            count = end - len(row)
            if count <= 0:
                continue
            if spec.kind == "mamba":  # one state, after all these tokens
                tables.last_state = len(row) - 1
                row += [None] * (count - 1)
                count = 1
            row += self.pool.take(count)

    def _store(self, sequence: CachedSequence, hashes: list[bytes]) -> None:
        """Caches the next blocks of a sequence in the groups that keep them."""
        tables = self._tables[sequence]
        first = sequence.cached_blocks
        last = first + len(hashes)
        for group, policy in enumerate(self._policies):
            start = max(first, tables.skipped[group])
            if start >= last:
                continue
            mask = policy.mask_of_cached(start, last, tables.boundaries, self._interval)
            row = tables.rows[group]
            positions = []
            for position in range(start, min(last, len(row))):
                block = row[position]
                if block is not None and (mask is None or mask[position - start]):
                    key = group_key(hashes[position - first], group)
                    self.pool.cache(block, key)
                    if self.specs[group].kind == "mamba":
                        self._new_states.add(key)
                    positions.append(position - first)
            if self._has_events:
                event = self._stored_in_group(sequence, hashes, group, start - first, positions)
                self.pending.append(event)
        sequence.cached_blocks = last
        sequence.last_hash = hashes[-1]

    def _stored_in_group(
        self,
        sequence: CachedSequence,
        hashes: list[bytes],
        group: int,
        start: int,
        positions: list[int],
    ) -> BlockStored:
        """Returns the event of a group for the next blocks of a sequence from number `start` on.

        As in vLLM, it has the tokens of all blocks, and the hashes of the cached ones.
        """
        event = self._stored(sequence, hashes)
        spec = self.specs[group]
        extra_keys = event.extra_keys or ()
        parent_hash = event.parent_block_hash
        if start:
            parent_hash = event.block_hashes[start - 1]
        return replace(
            event,
            block_hashes=[event.block_hashes[position] for position in positions],
            parent_block_hash=parent_hash,
            token_ids=event.token_ids[start * self.block_size :],
            extra_keys=[extra_keys[position] for position in positions] or None,
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
        frees_all = self._frees_all_skipped_states
        if tables is None or (computed < tables.trim_at and frees_all):
            return
        for group, policy in enumerate(self._policies):
            row = tables.rows[group]
            end = min(policy.unneeded(computed), len(row))
            freed = tables.freed[group]
            if end > freed:
                if not frees_all:
                    freed = _run_start(row, freed, end)
                self.pool.release([block for block in row[freed:end] if block is not None])
                row[freed:end] = [None] * (end - freed)
                tables.freed[group] = end
            if not frees_all and self.specs[group].kind == "mamba":
                self._free_state(row, tables.last_state, end)
        self._note_trim(tables)

    def _free_state(self, row: Row, position: int, end: int) -> None:
        """Frees the state at a position, unless a sequence needs it, whose states begin at `end`.

        In older versions, this is the state before the latest one. Others stay behind gaps.
        """
        if 0 <= position < end:
            block = row[position]
            if block is not None:
                self.pool.release([block])
                row[position] = None

    def _note_trim(self, tables: Tables) -> None:
        trims = [
            policy.first_unneeded(freed + 1)
            for policy, freed in zip(self._policies, tables.freed, strict=True)
        ]
        tables.trim_at = min(trim for trim in trims if trim is not None)
