"""Blocks of an engine on blocks of the index, whatever their sizes.

The tokens of a prompt are cut anew into blocks of the index. An engine's block has a part in every block of
the index that it overlaps; one that ends inside such a block leaves a tail, from which the next event of that
prompt goes on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from cachetools import LRUCache
from msgspec import Struct

from app.kvindex.backend import UNALIGNED, Owned
from app.kvindex.features import folded
from app.kvindex.keys import Features, RequestKeys

MOST_TAILS = 100_000


class Span(Struct, frozen=True, gc=False):
    """A block of an engine among the tokens behind the last full block of the index.

    `start` is below 0 if it begins in that block; `before` are then its keys up to there.
    """

    engine: int
    start: int
    end: int
    features: Features
    before: tuple[int, ...] = ()


class Tail(Struct, frozen=True):
    """The tokens of a prompt behind its last full block, whose key is `parent`."""

    parent: int
    tokens: Sequence[int] = ()
    spans: Sequence[Span] = ()


class Aligned(Struct, frozen=True):
    """An event on blocks of the index.

    `keys` are those of all full blocks, `owned` those of each of the engine's blocks, and `remapped` those of
    blocks of earlier events that only now have a part in one. `tails` has the tail behind each block that
    ends inside a block of the index, by engine key.
    """

    keys: list[int]
    owned: list[Owned]
    remapped: list[tuple[int, tuple[int, ...]]]
    tails: Mapping[int, Tail]


class Tails:
    """The latest tails, by whose they are and the engine key that they follow."""

    def __init__(self, most: int = MOST_TAILS) -> None:
        self._tails: LRUCache[Hashable, Tail] = LRUCache(most)

    def __len__(self) -> int:
        return len(self._tails)

    def get(self, whose: Hashable, engine: int) -> Tail | None:
        return self._tails.get((whose, engine))

    def put(self, whose: Hashable, tails: Mapping[int, Tail]) -> None:
        for engine, tail in tails.items():
            self._tails[whose, engine] = tail


def align(
    request_keys: RequestKeys,
    tail: Tail,
    engine: Sequence[int],
    block_size: int,
    tokens: Sequence[int],
    features: Sequence[Features] | None,
) -> Aligned:
    """Cut the `tokens` of an engine's blocks of `block_size`, which follow `tail`, into blocks of the index.

    ValueError and KeyError as of `RequestKeys.keys`.
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
    """The features of the full blocks, None where there are none at all."""
    if not any(span.features for span in spans):
        return None
    return folded(((span.start, span.features) for span in spans), full, size)


def _owned(span: Span, keys: Sequence[int], size: int) -> tuple[int, ...]:
    owned = (*span.before, *keys[max(0, span.start) // size : -(-span.end // size)])
    return owned if span.end % size == 0 else (*owned, UNALIGNED)


def _tails(
    parent: int, tokens: Sequence[int], spans: Sequence[Span], known: int, keys: Sequence[int], size: int
) -> Iterator[tuple[int, Tail]]:
    """The tails behind all spans but the first `known` ones."""
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
    """A span as it stands behind full block number `block`."""
    start = block * size
    before = (*span.before, *keys[max(0, span.start) // size : block])
    return Span(span.engine, span.start - start, span.end - start, span.features, before)
