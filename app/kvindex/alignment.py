"""Maps an engine's stored blocks of any size to blocks of the index.

A prompt's tokens are cut again into blocks of the index. An engine's block owns a part of every index block
that it overlaps. A block that ends inside an index block leaves a tail, which the next event continues.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeAlias

from cachetools import LRUCache
from msgspec import Struct

from app.engine.kvcache.events import BlockHash, BlockStored
from app.kvindex.backend import UNALIGNED, Owned, Store
from app.kvindex.decoding import LOW_64, engine_keys
from app.kvindex.holders import Engine
from app.kvindex.keys import Features, RequestKeys, fold_features, published_features

TAILS_BYTES = 64 << 20
"""Most memory of all tails of an index, in bytes."""
TAIL_BYTES = 900
"""Memory of a tail beside its tokens and spans, in bytes: a key with its place in two dictionaries."""
SPAN_BYTES = 160
NUMBER_BYTES = 40
"""Memory of a token id or a key in a list, in bytes."""
SCORED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV cache groups where a hit needs every block from the prompt's start."""
MOST_BLOCK_TOKENS = 1 << 14
"""Most tokens of an engine's block; larger blocks are refused."""
MOST_MODELS = 1024
"""Most models whose block sizes are remembered."""
MOST_SIZES = 8
"""Most block sizes remembered for each model."""

Known: TypeAlias = Mapping[tuple[int, int], Owned | None]
"""(group, engine key) -> request keys of an engine's block; None for an unknown block."""


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
        for number, event in enumerate(self.events):
            end, parents = at + len(event.block_hashes), [self.parents[number]]
            yield StoreGroup([event], self.engine[at:end], parents, self.group, self.tier, self.adapter)
            at = end


class BlockAligner:
    """Converts groups of stores to operations. Remembers engines' block sizes and prompts' tails."""

    def __init__(self, request_keys: RequestKeys, tails_bytes: int = TAILS_BYTES) -> None:
        self._request_keys = request_keys
        self._size = request_keys.block_size
        self.tails = PartialBlocks(tails_bytes)
        self.block_sizes: dict[str, set[int]] = {}
        """Model -> block sizes of its engines, in tokens."""

    def operation(self, source: Engine, run: StoreGroup, known: Known) -> Store:
        """Returns one operation. Refused when the event cannot be used, or the events not as one."""
        try:
            return (self._one if len(run.events) == 1 else self._several)(source, run, known)
        except ValueError:
            raise Refused("bad_token_ids") from None

    def _one(self, source: Engine, run: StoreGroup, known: Known) -> Store:
        [event], [parent], engine = run.events, run.parents, run.engine
        before = self._before(source, run, parent, known)
        _check(event)
        features = published_features(event.extra_keys, event.lora_name)
        self._note_size(source.model, run, event.block_size)
        if event.block_size == self._size and isinstance(before, int):
            keys = self._request_keys.keys(before, event.token_ids, features)
            return _store(run, keys, keys)
        tail = Tail(before) if isinstance(before, int) else before
        aligned = align(self._request_keys, tail, engine, event.block_size, event.token_ids, features)
        self.tails.put((source, run.group), aligned.tails)
        return _store(run, aligned.owned, aligned.keys, aligned.remapped)

    def _several(self, source: Engine, run: StoreGroup, known: Known) -> Store:
        place = dict(zip(run.engine, count(), strict=False))
        root, keys_after = self._request_keys.root(run.adapter or source.model), self._request_keys.keys
        keys: list[int] = []
        for number, event in enumerate(run.events):
            before, parent = root, run.parents[number]
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
        self._note_size(source.model, run, self._size)
        return _store(run, keys, keys)

    def _before(self, source: Engine, run: StoreGroup, parent: int | None, known: Known) -> int | Tail:
        """Returns the request key, or the tail, before an event's first block."""
        if parent is None:
            return self._request_keys.root(run.adapter or source.model)
        tail = self.tails.get((source, run.group), parent) if len(self.tails) else None
        if tail is not None:
            return tail
        owned = known[run.group, parent]
        if owned is None:
            raise Refused("unknown_parent")
        last = owned if isinstance(owned, int) else owned[-1] if owned else UNALIGNED
        if last == UNALIGNED:
            raise Refused("unaligned_parent")
        return last

    def _note_size(self, model: str, run: StoreGroup, size: int) -> None:
        if len(run.engine) == len(run.events):
            return  # a single block may be the partial one at the end of a hybrid model's prompt
        sizes = self.block_sizes.get(model)
        if sizes is None:
            if len(self.block_sizes) >= MOST_MODELS:
                return
            sizes = self.block_sizes[model] = set()
        if len(sizes) < MOST_SIZES:
            sizes.add(size)


def _check(event: BlockStored) -> None:
    """Raises Refused unless the numbers of tokens and extra keys fit the number of blocks."""
    blocks = len(event.block_hashes)
    if not 0 < event.block_size <= MOST_BLOCK_TOKENS:
        raise Refused("bad_block_size")
    if len(event.token_ids) != blocks * event.block_size:
        raise Refused("token_count")
    if event.extra_keys and len(event.extra_keys) != blocks:
        raise Refused("extra_keys_count")


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


class Span(Struct, frozen=True, gc=False):
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
    spans: Sequence[Span] = ()


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
    everything = [*tail.tokens, *tokens]
    full = len(everything) // size
    new = [
        Span(
            engine=key,
            start=offset + number * block_size,
            end=offset + (number + 1) * block_size,
            features=features[number] if features else None,
        )
        for number, key in enumerate(engine)
    ]
    spans = [*tail.spans, *new]
    keys = request_keys.keys(tail.parent, everything[: full * size], _features(spans, full, size))
    return Aligned(
        keys=keys,
        owned=[_owned(span, keys, size) for span in new],
        remapped=[(span.engine, _owned(span, keys, size)) for span in tail.spans] if keys else [],
        tails=dict(_tails(tail.parent, everything, spans, len(tail.spans), keys, size)),
    )


def _features(spans: Sequence[Span], full: int, size: int) -> list[Features] | None:
    """Returns the features of the full blocks; None if no block has any."""
    if not any(span.features for span in spans):
        return None
    return fold_features(((span.start, span.features) for span in spans), full, size)


def _owned(span: Span, keys: Sequence[int], size: int) -> tuple[int, ...]:
    owned = (*span.before, *keys[max(0, span.start) // size : -(-span.end // size)])
    return owned if span.end % size == 0 else (*owned, UNALIGNED)


def _tails(
    parent: int, tokens: Sequence[int], spans: Sequence[Span], known: int, keys: Sequence[int], size: int
) -> Iterator[tuple[int, Tail]]:
    """Yields the tails behind all spans except the first `known` ones."""
    first = 0
    for number in range(known, len(spans)):
        last = spans[number]
        block, rest = divmod(last.end, size)
        if not rest:
            continue
        start = block * size
        while spans[first].end <= start:
            first += 1
        moved = tuple(_moved(span, keys, block, size) for span in spans[first : number + 1])
        yield last.engine, Tail(keys[block - 1] if block else parent, tokens[start : last.end], moved)


def _moved(span: Span, keys: Sequence[int], block: int, size: int) -> Span:
    """Returns a span relative to the end of full block number `block`."""
    start = block * size
    before = (*span.before, *keys[max(0, span.start) // size : block])
    return Span(span.engine, span.start - start, span.end - start, span.features, before)
