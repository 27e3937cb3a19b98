"""Alignment of an engine's blocks with blocks of the index, where the two sizes differ.

A prompt's tokens are cut again into blocks of the index. An engine's block covers a part of every
index block that it overlaps. A block that ends inside an index block leaves a tail, which the next
event continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.extensions.kv_index.backend import UNALIGNED, CoveredKeys, Store
from app.extensions.kv_index.features import Features, fold_features
from app.extensions.kv_index.keys import RequestKeys

TAIL_BYTES = 450
"""Memory of a tail besides its numbers, in bytes."""
FEATURES_BYTES = 160
"""Memory of a block's features in a tail, in bytes."""
NUMBER_BYTES = 40
"""Memory of a number in a list, in bytes."""


class Tail(Struct, frozen=True):
    """A prompt's tokens behind its last full index block, whose key is `parent`.

    `engine_keys` names the engine's blocks that overlap these tokens. `features` pairs the position
    of a block's first token in `tokens` with the block's features.
    """

    parent: int
    tokens: Sequence[int] = ()
    engine_keys: tuple[int, ...] = ()
    features: tuple[tuple[int, Features], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Memory of the tail, in bytes."""
        number_count = len(self.tokens) + len(self.engine_keys)
        return TAIL_BYTES + NUMBER_BYTES * number_count + FEATURES_BYTES * len(self.features)


class EngineBlocks(Struct, frozen=True):
    """Consecutive blocks of an engine: all tokens, and features by block, or None for none."""

    block_size: int
    tokens: Sequence[int]
    features: Sequence[Features] | None


def align(
    request_keys: RequestKeys, tail: Tail, blocks: EngineBlocks, store: Store
) -> dict[int, Tail]:
    """Cuts the tokens of an engine's blocks, behind `tail`, into blocks of the index.

    Sets `request_keys`, `covered` and `joined` of `store`. Returns engine key -> tail for the
    engine's blocks that end inside an index block.

    Raises:
        ValueError: as `RequestKeys.keys`.
    """
    size = request_keys.block_size
    tokens = [*tail.tokens, *blocks.tokens]
    starts = range(len(tail.tokens), len(tokens), blocks.block_size)
    placed = list(tail.features)
    if blocks.features is not None:
        for start, features in zip(starts, blocks.features, strict=True):
            if features:
                placed.append((start, features))
    full_count = len(tokens) // size
    folded = fold_features(placed, full_count, size) if placed else None
    keys = request_keys.keys(tail.parent, tokens[: full_count * size], folded)
    overlapping = tail.engine_keys
    covered: list[CoveredKeys] = []
    tails: dict[int, Tail] = {}
    for key, start in zip(store.engine_keys, starts, strict=True):
        end = start + blocks.block_size
        full_before_end = end // size
        tail_start = full_before_end * size
        overlapping = (key,) if tail_start >= start else (*overlapping, key)
        block_keys = tuple(keys[start // size : -(-end // size)])
        if end == tail_start:
            covered.append(block_keys)
            continue
        covered.append((*block_keys, UNALIGNED))
        tail_features = [
            (place - tail_start, features)
            for place, features in placed
            if tail_start <= place < end
        ]
        tails[key] = Tail(
            parent=keys[full_before_end - 1] if full_before_end else tail.parent,
            tokens=tokens[tail_start:end],
            engine_keys=overlapping,
            features=tuple(tail_features),
        )
    store.request_keys = keys
    store.covered = covered
    store.joined = [(key, keys[0]) for key in tail.engine_keys] if keys else ()
    return tails
