"""Features: what tells apart blocks of equal tokens.

Engines publish them and requests state them, both in the same order: the images that a block touches, then,
in the first block of a prompt, the salt. An adapter is not among them: its name stands in place of the
model's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from app.kvcache.prompt import Placeholder

Features: TypeAlias = tuple[str, ...] | None
"""Identifiers of images and a salt, in the order of the prompt."""


def published_features(
    extra_keys: Sequence[Sequence[object] | None] | None, adapter: str | None
) -> list[Features] | None:
    """The features of an event's blocks; None if there are none.

    `extra_keys` holds per block a list of the adapter's name, identifiers (bare, or with an offset), the
    salt, or digests. vLLM up to 0.18 publishes identifiers bare, so that nothing tells them from a salt.
    """
    if not extra_keys or not any(extra_keys):
        return None
    features = [_of_block(keys or (), adapter) for keys in extra_keys]
    return features if any(features) else None


def _of_block(keys: Sequence[object], adapter: str | None) -> Features:
    texts = [text for key in keys if (text := _text(key)) is not None]
    if adapter is not None and keys and keys[0] == adapter:
        del texts[0]
    return tuple(dict.fromkeys(texts)) or None


def _text(key: object) -> str | None:
    if isinstance(key, list) and key:
        key = key[0]
    if isinstance(key, bytes):
        return key.hex()
    return key if isinstance(key, str) else None


def requested_features(
    blocks: int, block_size: int, media: Sequence[Placeholder], salt: str | None, engine_block_size: int
) -> list[Features] | None:
    """The features of the first `blocks` blocks of a prompt, as engines with such blocks publish them."""
    if not media and not salt:
        return None
    engine_blocks = -(-blocks * block_size // engine_block_size)
    texts: list[list[str]] = [[] for _ in range(engine_blocks)]
    for item in sorted(media, key=lambda item: item.offset):
        touched = item.blocks(engine_block_size)
        for block in range(max(0, touched.start), min(touched.stop, engine_blocks)):
            texts[block].append(item.identifier)
    if salt and texts:
        texts[0].append(salt)
    placed = ((block * engine_block_size, tuple(own)) for block, own in enumerate(texts))
    folded = fold_features(placed, blocks, block_size)
    return folded if any(folded) else None


def fold_features(placed: Iterable[tuple[int, Features]], blocks: int, block_size: int) -> list[Features]:
    """The features of `blocks` blocks of the index, from those of an engine's blocks.

    Each of these, given with the token at which it begins, gives its own to the block in which that is.
    """
    texts: list[dict[str, None]] = [{} for _ in range(blocks)]
    for start, features in placed:
        if features and 0 <= start < blocks * block_size:
            texts[start // block_size].update(dict.fromkeys(features))
    return [tuple(block) or None for block in texts]


def granularities(engine_block_sizes: Collection[int], block_size: int) -> set[int]:
    """The block sizes at which a request with features has to be keyed to meet all of these engines."""
    sizes = {block_size if block_size % size == 0 else size for size in engine_block_sizes}
    return sizes or {block_size}
