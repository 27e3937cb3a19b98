"""Conversion of engines' events to operations on blocks of the index.

Consecutive events that differ only in their blocks become one operation, which costs much less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from typing import cast

from msgspec.structs import replace

from app.core.base.caches import Memo
from app.core.base.clock.pause import pause_if_possible
from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
)
from app.extensions.kv_index.alignment import EngineBlocks, Tail, align
from app.extensions.kv_index.backend import (
    CPU,
    GPU,
    MAX_TIERS,
    UNALIGNED,
    Backend,
    Clear,
    Offload,
    Operation,
    Remove,
    Store,
    keys_of,
)
from app.extensions.kv_index.features import published_features
from app.extensions.kv_index.gradual_memo import GradualMemo
from app.extensions.kv_index.groups import WINDOW_KINDS, EngineGroups
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.keys import RequestKeys, packed_ids
from app.extensions.kv_index.new_blocks import (
    MAX_BLOCK_TOKENS,
    KnownBlocks,
    NewBlocks,
    RejectedEventError,
)
from app.extensions.kv_index.parts import PART_COST, cost_of, split_batch
from app.shared.event_hashes import unsigned64

TAILS_LIMIT_BYTES = 64 << 20
"""Memory limit of all tails of an index, in bytes."""
EXTRA_KEYS_COST = 8
"""Divisor of the number of blocks in a turn, for a long event with extra keys."""
MAX_GROUPS = 64
"""Maximum number of KV cache groups of an engine."""
MAX_TIER_LENGTH = 64
"""Maximum length of a tier's name, in characters."""
MAX_ADAPTER_LENGTH = 512
"""Maximum length of an adapter's name, in characters."""
MAX_HASH_BYTES = 64
"""Maximum size of a block hash, in bytes."""
MAX_EXTRA_KEYS = 256
"""Maximum number of extra keys of a block: images that begin in it, and a few more."""
HASHES_PER_PAUSE = 1 << 13
"""Number of hashes converted without a pause, in about 2 ms."""


class Ingest:
    """Converts events to operations. Remembers prompts' tails."""

    def __init__(
        self, backend: Backend, request_keys: RequestKeys, tails_bytes: int = TAILS_LIMIT_BYTES
    ) -> None:
        self._backend = backend
        self._request_keys = request_keys
        self._block_size = request_keys.block_size
        self._parser = EventParser(backend, self._block_size)
        self._groups = EngineGroups(backend, self._block_size)
        self.tails: Memo[tuple[IndexedEngine, int, int], Tail] = GradualMemo(tails_bytes)
        """Latest tails, by engine, KV cache group and the engine key before the tail."""

    def operations(
        self,
        source: IndexedEngine,
        events: Sequence[KVEvent],
        losses: list[str],
        *,
        applies_parts: bool,
    ) -> Iterable[list[Operation]]:
        """Returns the operations of a batch, in parts that are short enough for one turn.

        Appends reasons for lost events to `losses`. With `applies_parts`, the caller applies each
        part before it takes the next one. At least one part is returned, which may be empty.

        Raises:
            BackendUnavailableError: the backend does not answer.
        """
        for event in events:
            if isinstance(event, BlockStored) and event.kv_cache_spec_kind in WINDOW_KINDS:
                return self._paired(source, events, losses)
        unapplied: KnownBlocks | None = None if applies_parts else {}
        if len(events) == 1 and cost_of(events[0], self._block_size) <= PART_COST:
            return [self._part(source, events, losses, unapplied=unapplied)]
        return self._parts(source, events, losses, unapplied=unapplied)

    def _paired(
        self, source: IndexedEngine, events: Sequence[KVEvent], losses: list[str]
    ) -> Iterator[list[Operation]]:
        """Yields the operations of a batch of an engine that has groups with windows; pauses.

        Engines may store a block in such a group before the group that has all blocks.
        """
        unapplied: KnownBlocks = {}
        parts: list[list[Operation]] = []
        for operations in self._parts(source, events, losses, unapplied=unapplied):
            parts.append(operations)
            pause_if_possible()
        for operations in parts:
            for operation in operations:
                if isinstance(operation, Store) and operation.window is not None:
                    unknown = self._groups.pair(source, operation, unapplied)
                    losses += ["unpaired_block"] * unknown
            pause_if_possible()
        yield from parts

    def _parts(
        self,
        source: IndexedEngine,
        events: Sequence[KVEvent],
        losses: list[str],
        *,
        unapplied: KnownBlocks | None,
    ) -> Iterator[list[Operation]]:
        """Yields the operations of a batch; groups with windows have no blocks yet."""
        for part in split_batch(events, self._block_size):
            if len(part) == 1 and cost_of(part[0], self._block_size) > PART_COST:
                yield from self._long_event(source, part[0], losses, unapplied=unapplied)
            else:
                yield self._part(source, part, losses, unapplied=unapplied)

    def _part(
        self,
        source: IndexedEngine,
        events: Sequence[KVEvent],
        losses: list[str],
        *,
        unapplied: KnownBlocks | None,
    ) -> list[Operation]:
        """Returns the operations of some short events."""
        try:
            if len(events) > 1:
                groups = [list(group) for _, group in groupby(events, self._parser.similarity)]
                return self._operations(source, groups, None, unapplied=unapplied)
        except RejectedEventError:
            pass  # each event is then an operation, or lost, by itself
        groups = [[event] for event in events]
        return self._operations(source, groups, losses, unapplied=unapplied)

    def _long_event(
        self,
        source: IndexedEngine,
        event: KVEvent,
        losses: list[str],
        *,
        unapplied: KnownBlocks | None,
    ) -> Iterator[list[Operation]]:
        """Yields the operations of an event that takes several turns; pauses."""
        pause_if_possible()  # decoding the event has taken most of a turn
        try:
            parsed = self._parser.parse([event])
            if not isinstance(parsed, NewBlocks):
                if isinstance(parsed, Clear):
                    yield [parsed]
                    return
                for start in range(0, len(parsed.engine_keys), PART_COST):
                    keys = parsed.engine_keys[start : start + PART_COST]
                    yield [replace(parsed, engine_keys=keys)]
                return
            parents = self._parents(source, [parsed], unapplied)
            for store in self._long_store(source, parsed, parents):
                if unapplied is not None:
                    _record(store, unapplied)
                yield [store]
        except RejectedEventError as error:
            losses.append(str(error))
            yield []

    def _long_store(
        self, source: IndexedEngine, new: NewBlocks, parent_blocks: KnownBlocks
    ) -> Iterator[Store]:
        """Yields the operations of a long event. An invalid event has none.

        Raises:
            RejectedEventError: the event is unusable.
        """
        [event] = new.events
        [parent] = new.parents
        template = self._new_store(source, new)
        keys = new.engine_keys
        if template.window is not None:
            for start in range(0, len(keys), PART_COST):
                yield replace(template, engine_keys=keys[start : start + PART_COST])
            return
        preceding = self._preceding(source, new, parent, parent_blocks)
        _check_counts(event, len(keys))
        size = event.block_size
        try:
            tokens = packed_ids(event.token_ids)
        except ValueError:
            raise RejectedEventError("bad_token_ids") from None
        pause_if_possible()
        step = max(1, PART_COST // (1 + size // self._block_size))
        if event.extra_keys:
            step = max(1, step // EXTRA_KEYS_COST)
        for start in range(0, len(keys), step):
            stop = start + step
            features = None
            if event.extra_keys:
                features = published_features(event.extra_keys[start:stop], event.lora_name)
            blocks = EngineBlocks(size, tokens[start * size : stop * size], features)
            store = replace(template, engine_keys=keys[start:stop])
            preceding = self._fill(store, source, preceding, blocks=blocks)
            yield store

    def _operations(
        self,
        source: IndexedEngine,
        groups: Sequence[Sequence[KVEvent]],
        losses: list[str] | None,
        *,
        unapplied: KnownBlocks | None,
    ) -> list[Operation]:
        """Returns an operation for each group.

        Raises:
            RejectedEventError: a group is unusable, and `losses` is None.
        """
        parsed_groups: list[NewBlocks | Operation] = []
        for events in groups:
            try:
                parsed_groups.append(self._parser.parse(events))
            except RejectedEventError as error:
                _lose(losses, error)
        new_blocks = [parsed for parsed in parsed_groups if isinstance(parsed, NewBlocks)]
        known_blocks = self._parents(source, new_blocks, unapplied)
        operations: list[Operation] = []
        for parsed in parsed_groups:
            if not isinstance(parsed, NewBlocks):
                operations.append(parsed)
                continue
            try:
                store = self._store(source, parsed, known_blocks)
            except RejectedEventError as error:
                _lose(losses, error)
                continue
            operations.append(store)
            if known_blocks or unapplied is not None:
                _record(store, known_blocks)
        if unapplied is not None:
            unapplied.update(known_blocks)
        return operations

    def _parents(
        self,
        source: IndexedEngine,
        new_blocks: Sequence[NewBlocks],
        unapplied: KnownBlocks | None,
    ) -> KnownBlocks:
        """Returns the blocks that events continue."""
        known_blocks: KnownBlocks = {}
        wanted: list[tuple[int, int]] = []
        for parsed in new_blocks:
            wanted += [(parsed.group, key) for key in parsed.parents if key is not None]
        if unapplied:
            known_blocks = {block: unapplied[block] for block in wanted if block in unapplied}
            wanted = [block for block in wanted if block not in known_blocks]
        if wanted:
            known_blocks.update(
                zip(wanted, self._backend.covered_keys(source, wanted), strict=True)
            )
        return known_blocks

    def _new_store(self, source: IndexedEngine, new: NewBlocks) -> Store:
        """Returns the operation of a group, without its blocks of the index.

        Raises:
            RejectedEventError: the event does not describe its KV cache group.
        """
        store = Store(
            group=new.group,
            tier=new.tier,
            engine_keys=new.engine_keys,
            covered=(),
            request_keys=(),
            adapter=new.adapter,
        )
        kind = new.events[0].kv_cache_spec_kind
        if kind is not None:
            self._groups.describe(store, source, event=new.events[0], kind=kind)
        return store

    def _store(self, source: IndexedEngine, new: NewBlocks, known_blocks: KnownBlocks) -> Store:
        """Returns the operation of a group. Later groups of the batch may continue its blocks."""
        store = self._new_store(source, new)
        if store.window is not None:
            return store  # `EngineGroups.pair` adds the blocks
        try:
            if len(new.events) == 1:
                self._fill_store(store, source, new, known_blocks)
            else:
                store.request_keys = self._keys(source, new, known_blocks)
                store.covered = store.request_keys
        except ValueError:
            raise RejectedEventError("bad_token_ids") from None
        return store

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
        _check_counts(event, len(new.engine_keys))
        features = None
        if event.extra_keys:
            features = published_features(event.extra_keys, event.lora_name)
        blocks = EngineBlocks(event.block_size, event.token_ids, features)
        self._fill(store, source, preceding, blocks=blocks)

    def _fill(
        self, store: Store, source: IndexedEngine, preceding: int | Tail, *, blocks: EngineBlocks
    ) -> int | Tail:
        """Sets the blocks of an operation; returns the key or the tail that the next ones continue.

        Raises:
            ValueError: a token id is invalid.
        """
        if isinstance(preceding, int):
            if blocks.block_size == self._block_size:
                keys = self._request_keys.keys(preceding, blocks.tokens, blocks.features)
                store.request_keys = keys
                store.covered = keys
                return keys[-1] if keys else preceding
            preceding = Tail(preceding)
        tails = align(self._request_keys, preceding, blocks, store)
        for key, tail in tails.items():
            self.tails.put((source, store.group, key), tail, tail.size_bytes)
        if not store.covered:
            return preceding
        last_covered = keys_of(store.covered[-1])
        if store.covered[-1] != last_covered:
            return tails[store.engine_keys[-1]]
        return last_covered[-1]

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


class EventParser:
    """Finds the blocks that events name, and their group and tier."""

    def __init__(self, backend: Backend, block_size: int) -> None:
        """`block_size` is that of the index, in tokens."""
        self._backend = backend
        self._block_size = block_size
        self._tiers = {GPU, CPU}

    def similarity(self, event: KVEvent) -> object:
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
        elif isinstance(event, AllBlocksCleared):
            return AllBlocksCleared
        return id(event)

    def parse(self, events: Sequence[KVEvent]) -> NewBlocks | Operation:
        """Returns the operation of similar events, or the blocks that they store.

        Raises:
            RejectedEventError: an event is unusable.
        """
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


def _lose(losses: list[str] | None, error: RejectedEventError) -> None:
    """Counts a lost event.

    Raises:
        RejectedEventError: `losses` is None.
    """
    if losses is None:
        raise error
    losses.append(str(error))


def _record(store: Store, known_blocks: KnownBlocks) -> None:
    """Adds the blocks of an operation, which later events may continue."""
    if store.window is None:
        for key, covered in zip(store.engine_keys, store.covered, strict=True):
            known_blocks[store.group, key] = covered


def _check_counts(event: BlockStored, block_count: int) -> None:
    """Compares the sizes of an event's fields.

    Raises:
        RejectedEventError: the sizes do not match.
    """
    size = event.block_size
    if not 0 < size <= MAX_BLOCK_TOKENS:
        raise RejectedEventError("bad_block_size")
    if len(event.token_ids) != block_count * size:
        raise RejectedEventError("token_count")
    if event.extra_keys:
        if len(event.extra_keys) != block_count:
            raise RejectedEventError("extra_keys_count")
        if max([len(keys) for keys in event.extra_keys if keys], default=0) > MAX_EXTRA_KEYS:
            raise RejectedEventError("bad_extra_keys")


def engine_keys(values: Sequence[BlockHash], field: str) -> Sequence[int]:
    """Converts the hashes of a field to engine keys, their low 64 bits; pauses for many.

    Raises:
        RejectedEventError: a hash is invalid.
    """
    try:
        if not values or min(values) >= 0:  # type: ignore[operator]
            return values  # type: ignore[return-value]
    except TypeError:
        pass  # some are bytes
    keys = []
    for position, value in enumerate(values, 1):
        if position % HASHES_PER_PAUSE == 0:
            pause_if_possible()
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
