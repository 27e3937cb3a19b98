"""Conversion of engines' events to operations on blocks of the index.

Consecutive events that differ only in their blocks become one operation, which costs much less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count, groupby
from typing import TypeAlias, cast

from cachetools import LRUCache
from msgspec import Struct

from app.core.base.caches import Memo
from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.core.engine.kvcache.hashing import unsigned64
from app.extensions.kv_index.alignment import EngineBlocks, Tail, align
from app.extensions.kv_index.backend import (
    CPU,
    GPU,
    MAX_TIERS,
    UNALIGNED,
    Backend,
    Clear,
    CoveredKeys,
    Offload,
    Operation,
    Remove,
    Store,
    keys_of,
)
from app.extensions.kv_index.features import published_features
from app.extensions.kv_index.holders import IndexedEngine, Window
from app.extensions.kv_index.keys import RequestKeys

TAILS_LIMIT_BYTES = 64 << 20
"""Memory limit of all tails of an index, in bytes."""
SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a hit needs every block from the prompt's start."""
WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla", "mamba"})
"""Kinds where a hit needs the last blocks only. Engines store few of their blocks."""
MAX_BLOCK_TOKENS = 1 << 14
"""Maximum size of an engine's block, in tokens."""
MAX_WINDOW_TOKENS = 1 << 24
"""Maximum sliding window, in tokens."""
MAX_GROUPS = 64
"""Maximum number of KV cache groups of an engine."""
MAX_ENGINES = 65_536
"""Maximum number of engines whose groups are remembered."""
MAX_TIER_LENGTH = 64
"""Maximum length of a tier's name, in characters."""
MAX_ADAPTER_LENGTH = 512
"""Maximum length of an adapter's name, in characters."""
MAX_HASH_BYTES = 64
"""Maximum size of a block hash, in bytes."""

KnownBlocks: TypeAlias = dict[tuple[int, int], CoveredKeys | None]
"""(group, engine key) -> request keys of a block; None for an unknown block."""


class RejectedEventError(Exception):
    """Raised for an unusable event, or for events that cannot be one operation.

    The message of an unusable event is the reason in `IndexMetrics.skipped_events`.
    """


class NewBlocks(Struct, gc=False):
    """Stores that differ only in their blocks.

    `engine_keys` has the keys of all events in a row, `parents` one engine key for each event.
    """

    events: Sequence[BlockStored]
    engine_keys: Sequence[int]
    parents: Sequence[int | None]
    group: int
    tier: str
    adapter: str | None


class Ingest:
    """Converts events to operations. Remembers prompts' tails."""

    def __init__(self, backend: Backend, request_keys: RequestKeys) -> None:
        self._backend = backend
        self._request_keys = request_keys
        self._block_size = request_keys.block_size
        self._tiers = {GPU, CPU}
        self._main_groups: LRUCache[IndexedEngine, int] = LRUCache(MAX_ENGINES)
        """A group with all blocks of each engine that has groups with windows."""
        self.tails: Memo[tuple[IndexedEngine, int, int], Tail] = Memo(TAILS_LIMIT_BYTES)
        """Latest tails, by engine, KV cache group and the engine key before the tail."""

    def operations(
        self, source: IndexedEngine, events: Sequence[KVEvent], losses: list[str]
    ) -> list[Operation]:
        """Returns the operations of some events of a batch.

        Appends reasons for lost events to `losses`. The caller applies the operations before the
        next call.

        Raises:
            BackendUnavailableError: the backend does not answer.
        """
        try:
            if len(events) > 1:
                groups = [list(group) for _, group in groupby(events, self._similarity)]
                return self._operations(source, groups, None)
        except RejectedEventError:
            pass  # each event is then an operation, or lost, by itself
        return self._operations(source, [[event] for event in events], losses)

    def _operations(
        self, source: IndexedEngine, groups: Sequence[Sequence[KVEvent]], losses: list[str] | None
    ) -> list[Operation]:
        """Returns an operation for each group.

        Raises:
            RejectedEventError: a group is unusable, and `losses` is None.
        """
        parsed_groups: list[NewBlocks | Operation] = []
        parents: list[tuple[int, int]] = []
        for events in groups:
            try:
                parsed = self._parse(events)
            except RejectedEventError as error:
                _lose(losses, error)
                continue
            parsed_groups.append(parsed)
            if isinstance(parsed, NewBlocks):
                parents += [(parsed.group, key) for key in parsed.parents if key is not None]
        parent_blocks: KnownBlocks = {}
        if parents:
            parent_blocks.update(
                zip(parents, self._backend.covered_keys(source, parents), strict=True)
            )
        operations: list[Operation] = []
        windowed: list[Store] = []
        for parsed in parsed_groups:
            if not isinstance(parsed, NewBlocks):
                operations.append(parsed)
                continue
            try:
                store = self._store(source, parsed, parent_blocks)
            except RejectedEventError as error:
                _lose(losses, error)
                continue
            operations.append(store)
            if store.window is not None:
                windowed.append(store)
        if windowed:
            self._pair_all(source, windowed, operations, losses)
        return operations

    def _pair_all(
        self,
        source: IndexedEngine,
        stores: Sequence[Store],
        operations: Sequence[Operation],
        losses: list[str] | None,
    ) -> None:
        """Adds the blocks of groups with windows.

        Raises:
            RejectedEventError: a block is unknown, and `losses` is None.
        """
        for store in stores:
            for _ in range(self._pair(source, store, operations)):
                _lose(losses, RejectedEventError("unpaired_block"))

    def _pair(self, source: IndexedEngine, store: Store, operations: Sequence[Operation]) -> int:
        """Finds the blocks of a group with a window; returns the number of unknown blocks.

        The engine names equal blocks alike in all groups, and a group with all blocks has them,
        too. The event's tokens do not show which blocks it stores: it may leave blocks out.
        """
        main = self._main_groups.get(source)
        if main is None:
            unknown = len(store.engine_keys)
            store.engine_keys = ()
            return unknown
        entries: dict[int, CoveredKeys] = {}
        for operation in operations:
            if isinstance(operation, Store) and operation.group == main:
                entries.update(zip(operation.engine_keys, operation.covered, strict=True))
        wanted = [(main, key) for key in store.engine_keys if key not in entries]
        if wanted:
            stored = self._backend.covered_keys(source, wanted)
            for (_, key), covered in zip(wanted, stored, strict=True):
                if covered is not None:
                    entries[key] = covered
        names = [key for key in store.engine_keys if key in entries]
        unknown = len(store.engine_keys) - len(names)
        store.engine_keys = names
        store.covered = [entries[key] for key in names]
        blocks = chain.from_iterable(map(keys_of, store.covered))
        store.request_keys = list(dict.fromkeys(blocks))
        return unknown

    def _similarity(self, event: KVEvent) -> object:
        """Returns a value that is equal for events of one operation, and unique otherwise."""
        if isinstance(event, BlockStored):
            extra_keys = event.extra_keys
            has_extras = extra_keys and any(extra_keys)
            kind = event.kv_cache_spec_kind
            is_plain = event.token_ids and not has_extras and kind not in WINDOW_KINDS
            if event.block_size == self._block_size and is_plain:
                return event.medium, event.group_idx, event.lora_name, event.lora_id, kind
        elif isinstance(event, BlockRemoved):
            return event.medium, event.group_idx
        return id(event)

    def _tier(self, medium: str | None) -> str:
        """Returns the tier of a medium.

        Raises:
            RejectedEventError: the name is too long, or there are `MAX_TIERS` tiers already.
        """
        tier = medium.lower() if medium else GPU
        if tier not in self._tiers:
            if len(tier) > MAX_TIER_LENGTH:
                raise RejectedEventError("bad_medium")
            tiers = self._tiers.union(self._backend.tiers)
            if tier not in tiers and len(tiers) >= MAX_TIERS:
                raise RejectedEventError("too_many_tiers")
            self._tiers.add(tier)
        return tier

    def _parse(self, events: Sequence[KVEvent]) -> NewBlocks | Operation:
        first = events[0]
        if isinstance(first, AllBlocksCleared):
            return Clear()
        hashes = first.block_hashes
        if len(events) > 1:
            hashes = [block_hash for event in events for block_hash in event.block_hashes]
        keys = engine_keys(hashes, "block_hashes")
        group = first.group_idx or 0
        tier = self._tier(first.medium)
        if not 0 <= group < MAX_GROUPS:
            raise RejectedEventError("bad_group_idx")
        if isinstance(first, BlockRemoved):
            return Remove(group, tier, keys)
        if not first.token_ids:
            return Offload(group, tier, keys)
        if first.lora_name and len(first.lora_name) > MAX_ADAPTER_LENGTH:
            raise RejectedEventError("bad_lora_name")
        adapter = first.lora_name
        if not adapter and first.lora_id:  # vLLM before 0.14 publishes only an adapter's number
            adapter = str(first.lora_id)
        stores = cast(Sequence[BlockStored], events)
        return NewBlocks(
            events=stores,
            engine_keys=keys,
            parents=[*map(parent_key, stores)],
            group=group,
            tier=tier,
            adapter=adapter or None,
        )

    def _store(self, source: IndexedEngine, new: NewBlocks, parent_blocks: KnownBlocks) -> Store:
        """Returns the operation of a group. Later groups of the batch may continue its blocks."""
        kind = new.events[0].kv_cache_spec_kind
        store = Store(
            group=new.group,
            tier=new.tier,
            engine_keys=new.engine_keys,
            covered=(),
            request_keys=(),
            scored=None if kind is None else kind in SCORED_KINDS,
            adapter=new.adapter,
        )
        if kind in WINDOW_KINDS:
            store.window = self._window(new.events[0])
            return store  # `_pair` adds the blocks
        if store.scored:
            self._main_groups[source] = store.group
        try:
            if len(new.events) == 1:
                self._fill_store(store, source, new, parent_blocks)
            else:
                store.request_keys = self._keys(source, new, parent_blocks)
                store.covered = store.request_keys
        except ValueError:
            raise RejectedEventError("bad_token_ids") from None
        if parent_blocks:
            for key, covered in zip(store.engine_keys, store.covered, strict=True):
                parent_blocks[store.group, key] = covered
        return store

    def _window(self, event: BlockStored) -> Window:
        """Returns the blocks that a hit reads in the event's group."""
        size = event.block_size
        if not 0 < size <= MAX_BLOCK_TOKENS:
            raise RejectedEventError("bad_block_size")
        tokens = size
        if event.kv_cache_spec_sliding_window is not None:
            if event.kv_cache_spec_sliding_window < 1:
                raise RejectedEventError("bad_kv_cache_spec_sliding_window")
            window = min(max(event.kv_cache_spec_sliding_window, 2), MAX_WINDOW_TOKENS)
            tokens = -(-(window - 1) // size) * size
        return Window(-(-tokens // self._block_size), max(1, size // self._block_size))

    def _fill_store(
        self, store: Store, source: IndexedEngine, new: NewBlocks, parent_blocks: KnownBlocks
    ) -> None:
        """Sets the blocks of a single event.

        Raises:
            ValueError: a token id is invalid.
        """
        [event] = new.events
        [parent] = new.parents
        preceding = self._preceding(source, new, parent, parent_blocks)
        size = event.block_size
        if not 0 < size <= MAX_BLOCK_TOKENS:
            raise RejectedEventError("bad_block_size")
        if len(event.token_ids) != len(new.engine_keys) * size:
            raise RejectedEventError("token_count")
        features = None
        if event.extra_keys:
            if len(event.extra_keys) != len(new.engine_keys):
                raise RejectedEventError("extra_keys_count")
            features = published_features(event.extra_keys, event.lora_name)
        if isinstance(preceding, int):
            if size == self._block_size:
                keys = self._request_keys.keys(preceding, event.token_ids, features)
                store.request_keys = keys
                store.covered = keys
                return
            preceding = Tail(preceding)
        blocks = EngineBlocks(size, event.token_ids, features)
        for key, tail in align(self._request_keys, preceding, blocks, store).items():
            self.tails.put((source, new.group, key), tail, tail.size_bytes)

    def _keys(self, source: IndexedEngine, new: NewBlocks, parent_blocks: KnownBlocks) -> list[int]:
        """Returns the keys of several events with blocks of the index's size.

        Raises:
            RejectedEventError: the events cannot be one operation.
            ValueError: a token id is invalid.
        """
        positions = dict(zip(new.engine_keys, count(), strict=False))
        root = self._request_keys.root(new.adapter or source.model)
        compute_keys = self._request_keys.keys
        keys: list[int] = []
        for event, parent in zip(new.events, new.parents, strict=True):
            preceding = root
            if parent is not None:
                position = positions.get(parent, len(keys))
                if position < len(keys):
                    preceding = keys[position]
                else:
                    preceding = self._preceding_key(source, new, parent, parent_blocks)
            token_ids = event.token_ids
            extra_keys = event.extra_keys
            block_count = len(event.block_hashes)
            if len(token_ids) != block_count * self._block_size:
                raise RejectedEventError
            if extra_keys and len(extra_keys) != block_count:
                raise RejectedEventError
            keys += compute_keys(preceding, token_ids)
        # A block stored twice is a further copy, which only separate operations count.
        if len(positions) < len(keys) or len(set(keys)) < len(keys):
            raise RejectedEventError
        return keys

    def _preceding_key(
        self, source: IndexedEngine, new: NewBlocks, parent: int, parent_blocks: KnownBlocks
    ) -> int:
        """Returns the request key before an event's blocks.

        Raises:
            RejectedEventError: the parent ends within a block, or is unknown.
        """
        preceding = self._preceding(source, new, parent, parent_blocks)
        if isinstance(preceding, Tail):
            raise RejectedEventError
        return preceding

    def _preceding(
        self, source: IndexedEngine, new: NewBlocks, parent: int | None, parent_blocks: KnownBlocks
    ) -> int | Tail:
        """Returns the request key before an event's blocks, or the tail that they continue."""
        if parent is None:
            return self._request_keys.root(new.adapter or source.model)
        tail = self.tails.get((source, new.group, parent))
        if tail is not None:
            return tail
        covered = parent_blocks[new.group, parent]
        if covered is None:
            raise RejectedEventError("unknown_parent")
        if covered == ():
            raise RejectedEventError("unaligned_parent")
        last_key = covered if isinstance(covered, int) else covered[-1]
        if last_key == UNALIGNED:
            raise RejectedEventError("unaligned_parent")
        return last_key


def _lose(losses: list[str] | None, error: RejectedEventError) -> None:
    """Counts a lost event.

    Raises:
        RejectedEventError: `losses` is None.
    """
    if losses is None:
        raise error
    losses.append(str(error))


def engine_keys(values: Sequence[BlockHash], field: str) -> Sequence[int]:
    """Converts the hashes of a field to engine keys, their low 64 bits.

    Raises:
        RejectedEventError: a hash is invalid.
    """
    try:
        if not values or min(values) >= 0:  # type: ignore[operator]
            return values  # type: ignore[return-value]
    except TypeError:
        pass  # some are bytes
    keys = []
    for value in values:
        if not isinstance(value, int) and not 0 < len(value) <= MAX_HASH_BYTES:
            raise RejectedEventError(f"bad_{field}")
        keys.append(unsigned64(value))
    return keys


def parent_key(event: BlockStored) -> int | None:
    """Returns the engine key of the block before the event; some engines write 0 for none."""
    parent = event.parent_block_hash
    if parent is None:
        return None
    if isinstance(parent, int):
        return unsigned64(parent) or None
    [key] = engine_keys([parent], "parent_block_hash")
    return key or None
