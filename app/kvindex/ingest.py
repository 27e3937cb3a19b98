"""Converts batches of KV events to operations on blocks of the index.

Engines announce blocks one by one. Applying several blocks together costs much less, so consecutive events
that differ only in their blocks form one group.

An engine's blocks may have any size. A prompt's tokens are cut again into blocks of the index. An engine's
block owns a part of every index block that it overlaps. A block that ends inside an index block leaves a
tail, which the next event continues.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TypeAlias, cast

from cachetools import LRUCache
from msgspec import Struct

from app.engine.kvcache.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent
from app.kvindex.backend import (
    GPU,
    MOST_TIERS,
    UNALIGNED,
    Backend,
    Clear,
    Offload,
    Operation,
    Owned,
    Remove,
    Store,
)
from app.kvindex.decoding import LOW_64, engine_keys
from app.kvindex.holders import IndexedEngine
from app.kvindex.keys import Features, RequestKeys, fold_features, published_features

TAILS_BYTES = 64 << 20
"""Most memory of all tails of an index, in bytes."""
TAIL_BYTES, SPAN_BYTES, NUMBER_BYTES = 900, 160, 40
"""Memory of a tail beside its tokens and spans, of a span, and of a number in a list, in bytes."""
SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a hit needs every block from the prompt's start."""
MOST_BLOCK_TOKENS = 1 << 14
"""Most tokens of an engine's block; larger blocks are refused."""
MOST_MODELS, MOST_SIZES = 1024, 8
"""Most models whose block sizes are remembered, and most sizes of each."""
MOST_TIER_LETTERS, MOST_NAME_LETTERS = 64, 512
"""Longest names of tiers and of adapters, in characters."""
MOST_MEDIA = 256
"""Most spellings of tiers that are remembered."""
MOST_GROUPS = 64
"""Most KV cache groups of one engine."""

Known: TypeAlias = dict[tuple[int, int], Owned | None]
"""(group, engine key) -> request keys of a block; None for an unknown block."""


class Refused(Exception):
    """An unusable event, or group of events; the message is a reason for `Losses.event`."""


class StoreGroup(Struct, gc=False):
    """Stores that differ only in their blocks, with engine keys as numbers.

    `engine` has the keys of all blocks in a row; `parents` has one key for each event. `adapter` is None for
    the base model.
    """

    events: Sequence[BlockStored]
    engine: Sequence[int]
    parents: Sequence[int | None]
    group: int
    tier: str
    adapter: str | None

    def apart(self) -> Iterator[StoreGroup]:
        """Yields a separate group for each event."""
        at = 0
        for event, parent in zip(self.events, self.parents, strict=True):
            end = at + len(event.block_hashes)
            yield StoreGroup([event], self.engine[at:end], [parent], self.group, self.tier, self.adapter)
            at = end


class Ingest:
    """Converts events to operations. An unusable event is lost with a reason.

    A refused group is tried event by event; a single refused event is lost. Remembers engines' block sizes
    and prompts' tails.
    """

    def __init__(self, backend: Backend, request_keys: RequestKeys, tails_bytes: int = TAILS_BYTES) -> None:
        self._backend, self._request_keys = backend, request_keys
        self._size = request_keys.block_size
        self._media: dict[str | None, str] = {}
        self.tails = PartialBlocks(tails_bytes)
        self.block_sizes: dict[str, set[int]] = {}
        """Model -> block sizes of its engines, in tokens."""

    def operations(
        self, source: IndexedEngine, events: Sequence[KVEvent], losses: list[str]
    ) -> list[Operation]:
        """Returns the operations of some events of a batch; appends reasons for lost events to `losses`.

        The caller applies the operations before the next call. May raise BackendUnavailable.
        """
        parsed: list[StoreGroup | Operation] = []
        for group in [events] if len(events) == 1 else event_groups(events, self._size):
            parsed += self._parsed(group, losses)
        wanted: list[tuple[int, int]] = []
        for each in parsed:
            if isinstance(each, StoreGroup):
                wanted += [(each.group, parent) for parent in each.parents if parent is not None]
        found = self._backend.owned(source, wanted) if wanted else ()
        known: Known = dict(zip(wanted, found, strict=True))
        operations: list[Operation] = []
        for each in parsed:
            if isinstance(each, StoreGroup):
                self._stores(source, each, known, losses, operations)
            else:
                operations.append(each)
        return operations

    def tier(self, medium: str | None) -> str:
        """Returns the tier of a medium. Raises Refused for a name too long, and beyond MOST_TIERS."""
        if medium in self._media:
            return self._media[medium]
        if medium and len(medium) > MOST_TIER_LETTERS:
            raise Refused("bad_medium")
        tier = medium.lower() if medium else GPU
        known = {*self._media.values(), *self._backend.tiers}
        if tier not in known and len(known) >= MOST_TIERS:
            raise Refused("too_many_tiers")
        if len(self._media) < MOST_MEDIA:
            self._media[medium] = tier
        return tier

    def operation(self, source: IndexedEngine, run: StoreGroup, known: Known) -> Store:
        """Returns one operation. Refused when the event cannot be used, or the events not as one."""
        try:
            return (self._one if len(run.events) == 1 else self._several)(source, run, known)
        except ValueError:
            raise Refused("bad_token_ids") from None

    def _parsed(self, events: Sequence[KVEvent], losses: list[str]) -> list[StoreGroup | Operation]:
        """Converts a group of events, as one if possible."""
        first = events[0]
        if isinstance(first, AllBlocksCleared):
            return [Clear()]
        try:
            names: Sequence[BlockHash] = first.block_hashes
            if len(events) > 1:
                alike = cast(Sequence[BlockRemoved], events)
                names = [name for event in alike for name in event.block_hashes]
            engine, group = engine_keys_of("block_hashes", names), first.group_idx or 0
            if not 0 <= group < MOST_GROUPS:
                raise Refused("bad_group_idx")
            tier = self.tier(first.medium)
            if isinstance(first, BlockRemoved):
                return [Remove(group, tier, engine)]
            if not first.token_ids:
                return [Offload(group, tier, engine)]
            stores = cast(Sequence[BlockStored], events)
            if first.lora_name and len(first.lora_name) > MOST_NAME_LETTERS:
                raise Refused("bad_lora_name")
            # vLLM before 0.14 publishes only the number of an adapter.
            adapter = first.lora_name or (str(first.lora_id) if first.lora_id else None)
            return [StoreGroup(stores, engine, [*map(parent_of, stores)], group, tier, adapter)]
        except Refused as refused:
            if len(events) == 1:
                losses.append(str(refused))
                return []
            return list(chain.from_iterable(self._parsed([event], losses) for event in events))

    def _stores(
        self,
        source: IndexedEngine,
        run: StoreGroup,
        known: Known,
        losses: list[str],
        operations: list[Operation],
    ) -> None:
        """Appends the operations of a group. Later events of the batch may continue its blocks."""
        try:
            store = self.operation(source, run, known)
        except Refused as refused:
            if len(run.events) == 1:
                losses.append(str(refused))
                return
            for each in run.apart():
                self._stores(source, each, known, losses, operations)
            return
        operations.append(store)
        if known:
            for key, owned in chain(zip(store.engine, store.owned, strict=True), store.remapped):
                known[store.group, key] = owned

    def _one(self, source: IndexedEngine, run: StoreGroup, known: Known) -> Store:
        [event], [parent], engine = run.events, run.parents, run.engine
        before = self._before(source, run, parent, known)
        if not 0 < event.block_size <= MOST_BLOCK_TOKENS:
            raise Refused("bad_block_size")
        if len(event.token_ids) != len(engine) * event.block_size:
            raise Refused("token_count")
        if event.extra_keys and len(event.extra_keys) != len(engine):
            raise Refused("extra_keys_count")
        features = published_features(event.extra_keys, event.lora_name) if event.extra_keys else None
        if len(engine) != 1:  # a single block may be the partial one at the end of a hybrid model's prompt
            self._note_size(source.model, event.block_size)
        if event.block_size == self._size and isinstance(before, int):
            keys = self._request_keys.keys(before, event.token_ids, features)
            return _store(run, keys, keys)
        tail = Tail(before) if isinstance(before, int) else before
        aligned = align(self._request_keys, tail, engine, event.block_size, event.token_ids, features)
        self.tails.put((source, run.group), aligned.tails)
        return _store(run, aligned.owned, aligned.keys, aligned.remapped)

    def _several(self, source: IndexedEngine, run: StoreGroup, known: Known) -> Store:
        place = dict(zip(run.engine, count(), strict=False))
        root, keys_after = self._request_keys.root(run.adapter or source.model), self._request_keys.keys
        keys: list[int] = []
        for event, parent in zip(run.events, run.parents, strict=True):
            before = root
            if parent is not None:
                at = place.get(parent, len(keys))
                follows = keys[at] if at < len(keys) else self._before(source, run, parent, known)
                if isinstance(follows, Tail):
                    raise Refused
                before = follows
            ids, extra, blocks = event.token_ids, event.extra_keys, len(event.block_hashes)
            if len(ids) != blocks * self._size or extra and len(extra) != blocks:
                raise Refused  # then each event is tried alone, and refused with its reason
            keys += keys_after(before, ids)
        # A block stored twice is a further copy, which only separate operations count.
        if len(place) < len(keys) or len(set(keys)) < len(keys):
            raise Refused
        if len(run.engine) != len(run.events):
            self._note_size(source.model, self._size)
        return _store(run, keys, keys)

    def _before(
        self,
        source: IndexedEngine,
        run: StoreGroup,
        parent: int | None,
        known: Known,
    ) -> int | Tail:
        """Returns the request key, or the tail, before an event's first block."""
        if parent is None:
            return self._request_keys.root(run.adapter or source.model)
        tail = self.tails.get((source, run.group), parent)
        if tail is not None:
            return tail
        owned = known[run.group, parent]
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return last

    def _note_size(self, model: str, size: int) -> None:
        sizes = self.block_sizes.get(model)
        if sizes is None:
            if len(self.block_sizes) >= MOST_MODELS:
                return
            sizes = self.block_sizes[model] = set()
        if len(sizes) < MOST_SIZES:
            sizes.add(size)


def event_groups(events: Iterable[KVEvent], block_size: int) -> Iterator[list[KVEvent]]:
    """Splits events, in their order, into groups for one operation each.

    A group has removals of one medium and cache group, or stores of one medium, cache group and adapter. The
    blocks of such stores have `block_size` tokens and no extra keys.
    """
    group: list[KVEvent] = []
    before: tuple[object, ...] | None = None
    for event in events:
        likeness: tuple[object, ...] | None = None  # None for an event that stays alone
        if isinstance(event, BlockStored):
            extra = event.extra_keys
            if event.block_size == block_size and event.token_ids and not (extra and any(extra)):
                kind = event.kv_cache_spec_kind
                likeness = event.medium, event.group_idx, event.lora_name, event.lora_id, kind
        elif isinstance(event, BlockRemoved):
            likeness = event.medium, event.group_idx
        if group and (likeness is None or likeness != before):
            yield group
            group = []
        before = likeness
        group.append(event)
    if group:
        yield group


def _store(
    run: StoreGroup,
    owned: Sequence[Owned],
    keys: Sequence[int],
    remapped: Sequence[tuple[int, tuple[int, ...]]] = (),
) -> Store:
    kind = run.events[0].kv_cache_spec_kind
    scored = None if kind is None else kind in SCORED_KINDS
    return Store(run.group, run.tier, run.engine, owned, keys, remapped, scored, run.adapter)


def engine_keys_of(field: str, values: Sequence[BlockHash]) -> list[int]:
    """Converts block hashes to engine keys. Refused for invalid hashes."""
    try:
        return engine_keys(values)
    except ValueError:
        raise Refused(f"bad_{field}") from None


def parent_of(event: BlockStored) -> int | None:
    """Returns the engine key of the block before the event; some engines write 0 for none."""
    parent = event.parent_block_hash
    if parent is None or parent.__class__ is int:
        return parent and int(parent) & LOW_64 or None
    [key] = engine_keys_of("parent_block_hash", [parent])
    return key or None


class TailBlock(Struct, frozen=True, gc=False):
    """An engine's block in a tail; `start` and `end` count tokens behind the last full index block.

    `start` is below 0 if the block begins earlier; `before` then has its request keys up to there.
    """

    engine: int
    start: int
    end: int
    features: Features
    before: tuple[int, ...] = ()


class Tail(Struct, frozen=True):
    """A prompt's tokens behind its last full index block, whose key is `parent`."""

    parent: int
    tokens: Sequence[int] = ()
    spans: Sequence[TailBlock] = ()


class Aligned(Struct, frozen=True):
    """An event, mapped to blocks of the index.

    `keys` lists the request keys of all full index blocks; `owned` lists the keys of each engine block.
    `remapped` has new keys for blocks of earlier events. `tails` has, by engine key, the tail behind each
    engine block that ends inside an index block.
    """

    keys: list[int]
    owned: list[Owned]
    remapped: list[tuple[int, tuple[int, ...]]]
    tails: Mapping[int, Tail]


class PartialBlocks:
    """Latest tails, by an engine's KV cache group and the engine key before the tail."""

    def __init__(self, limit_bytes: int = TAILS_BYTES) -> None:
        self._tails: LRUCache[Hashable, Tail] = LRUCache(limit_bytes, getsizeof=_tail_bytes)

    def __len__(self) -> int:
        return len(self._tails)

    @property
    def size_bytes(self) -> int:
        return int(self._tails.currsize)

    @property
    def limit_bytes(self) -> int:
        return int(self._tails.maxsize)

    def get(self, whose: Hashable, engine: int) -> Tail | None:
        return self._tails.get((whose, engine))

    def put(self, whose: Hashable, tails: Mapping[int, Tail]) -> None:
        for engine, tail in tails.items():
            if _tail_bytes(tail) <= self.limit_bytes:
                self._tails[whose, engine] = tail


def _tail_bytes(tail: Tail) -> int:
    """Returns the memory of a tail, in bytes; texts are shared and not counted."""
    numbers = len(tail.tokens) + sum([len(span.before) for span in tail.spans])
    return TAIL_BYTES + SPAN_BYTES * len(tail.spans) + NUMBER_BYTES * numbers


def align(
    request_keys: RequestKeys,
    tail: Tail,
    engine: Sequence[int],
    block_size: int,
    tokens: Sequence[int],
    features: Sequence[Features] | None,
) -> Aligned:
    """Cuts the `tokens` of engine blocks of `block_size`, behind `tail`, into blocks of the index.

    Raises ValueError as `RequestKeys.keys`.
    """
    size, offset = request_keys.block_size, len(tail.tokens)
    everything, known = [*tail.tokens, *tokens], len(tail.spans)
    full = len(everything) // size
    spans = list(tail.spans)
    for number, key in enumerate(engine):
        start = offset + number * block_size
        spans.append(TailBlock(key, start, start + block_size, features[number] if features else None))
    folded = None
    if any(span.features for span in spans):
        folded = fold_features(((span.start, span.features) for span in spans), full, size)
    keys = request_keys.keys(tail.parent, everything[: full * size], folded)
    owned: list[tuple[int, ...]] = []
    for span in spans:
        own = (*span.before, *keys[max(0, span.start) // size : -(-span.end // size)])
        owned.append(own if span.end % size == 0 else (*own, UNALIGNED))
    remapped = [(span.engine, own) for span, own in zip(tail.spans, owned, strict=False)] if keys else []
    tails = dict(_tails(tail.parent, everything, spans, known, keys, size))
    return Aligned(keys, [*owned[known:]], remapped, tails)


def _tails(
    parent: int, tokens: Sequence[int], spans: Sequence[TailBlock], known: int, keys: Sequence[int], size: int
) -> Iterator[tuple[int, Tail]]:
    """Yields the tails behind all spans except the first `known` ones."""
    first = 0
    for number in range(known, len(spans)):
        last = spans[number]
        block, rest = divmod(last.end, size)
        if not rest:
            continue
        end = block * size
        while spans[first].end <= end:
            first += 1
        moved = []  # relative to the end of the last full block
        for span in spans[first : number + 1]:
            before = (*span.before, *keys[max(0, span.start) // size : block])
            moved.append(TailBlock(span.engine, span.start - end, span.end - end, span.features, before))
        yield last.engine, Tail(keys[block - 1] if block else parent, tokens[end : last.end], tuple(moved))
