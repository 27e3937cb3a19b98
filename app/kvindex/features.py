"""What a block's key covers besides tokens, as engines publish it and as a request states it.

Both sides give the same texts in the same order: the images that a block touches, then, in the first block of
a prompt, the salt. An adapter is not among them: its name stands in place of the model's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from app.kvindex.keys import Features


class Media(Struct, frozen=True, gc=False):
    """An image or the like: its identifier, and the tokens of the prompt that stand for it."""

    identifier: str
    offset: int
    length: int


def published(
    extra_keys: Sequence[Sequence[Any] | None] | None, adapter: str | None
) -> list[Features] | None:
    """The features of an event's blocks; None if there are none.

    `extra_keys` holds per block a list of the adapter's name, identifiers (bare, or with an offset), the
    salt, or digests. vLLM up to 0.18 publishes identifiers bare, so that nothing tells them from a salt.
    """
    if extra_keys is None or not any(extra_keys):
        return None
    features = [_of_block(keys or (), adapter) for keys in extra_keys]
    return features if any(features) else None


def _of_block(keys: Sequence[Any], adapter: str | None) -> Features:
    texts = [text for key in keys if (text := _text(key)) is not None]
    if adapter is not None and keys and keys[0] == adapter:
        del texts[0]
    return tuple(dict.fromkeys(texts)) or None


def _text(key: Any) -> str | None:
    if isinstance(key, list) and key:
        key = key[0]
    if isinstance(key, bytes):
        return key.hex()
    return key if isinstance(key, str) else None


def requested(
    blocks: int, block_size: int, media: Sequence[Media], salt: str | None, engine_block_size: int
) -> list[Features] | None:
    """The features of the first `blocks` blocks of a prompt, as `published` and `folded` give them."""
    if not media and not salt:
        return None
    engine_blocks = -(-blocks * block_size // engine_block_size)
    texts: list[list[str]] = [[] for _ in range(engine_blocks)]
    for item in sorted(media, key=lambda item: item.offset):
        first = max(0, item.offset // engine_block_size)
        last = -(-(item.offset + item.length) // engine_block_size)
        for block in range(first, min(last, engine_blocks)):
            texts[block].append(item.identifier)
    if salt and texts:
        texts[0].append(salt)
    folded_texts = folded([tuple(block) for block in texts], 0, engine_block_size, blocks, block_size)
    return folded_texts if any(folded_texts) else None


def folded(
    features: Sequence[Features], start: int, engine_block_size: int, blocks: int, block_size: int
) -> list[Features]:
    """The features of an engine's blocks, the first of which begins at token `start`, per block of the index.

    An engine's block gives them to the block of the index in which it begins.
    """
    texts: list[dict[str, None]] = [{} for _ in range(blocks)]
    for number, feature in enumerate(features):
        at = (start + number * engine_block_size) // block_size
        if feature and at < blocks:
            texts[at].update(dict.fromkeys(feature))
    return [tuple(block) or None for block in texts]


def granularities(engine_block_sizes: Collection[int], block_size: int) -> set[int]:
    """The block sizes at which a request with features has to be keyed to meet all of these engines."""
    sizes = {block_size if block_size % size == 0 else size for size in engine_block_sizes}
    return sizes or {block_size}
