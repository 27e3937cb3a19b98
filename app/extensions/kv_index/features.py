"""Features: texts that distinguish blocks of equal tokens.

Engines publish features, and requests contain them, in the same order: the images in a block, then,
in a prompt's first block, the salt. An adapter is not a feature; its name replaces the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

from app.core.engine.kvcache.hashing import Placeholder

Features: TypeAlias = tuple[str, ...] | None
"""Identifiers of images, then the salt, of one block."""


def published_features(
    extra_keys: Sequence[Sequence[object] | None] | None, adapter: str | None
) -> list[Features] | None:
    """Returns the features of an event's blocks; None if no block has any.

    `extra_keys` has a list for each block: the adapter's name, identifiers (bare, or with an
    offset), the salt, or digests. vLLM up to 0.18 publishes bare identifiers, which look like a
    salt.
    """
    if not extra_keys or not any(extra_keys):
        return None
    features: list[Features] = []
    for keys in extra_keys:
        texts: dict[str, None] = {}
        for position, key in enumerate(keys or ()):
            if isinstance(key, list) and key:
                key = key[0]
            if isinstance(key, bytes):
                key = key.hex()
            if isinstance(key, str) and (position or key != adapter):
                texts[key] = None
        features.append(tuple(texts) or None)
    return features if any(features) else None


def requested_features(
    blocks: int, block_size: int, media: Sequence[Placeholder], salt: str | None
) -> list[Features] | None:
    """Returns the features of a prompt's first `blocks` blocks; None if no block has any."""
    texts: list[dict[str, None]] = [{} for _ in range(blocks)]
    for placeholder in sorted(media, key=attrgetter("offset")):
        touched = placeholder.blocks(block_size)
        for block in range(max(0, touched.start), min(touched.stop, blocks)):
            texts[block][placeholder.identifier] = None
    if salt and texts:
        texts[0][salt] = None
    if not any(texts):
        return None
    return [tuple(block) or None for block in texts]


def fold_features(
    placed: Iterable[tuple[int, Features]], blocks: int, block_size: int
) -> list[Features]:
    """Converts features of engine blocks to features of `blocks` index blocks.

    `placed` pairs an engine block's first token with its features. They go to the index block of
    this token.
    """
    texts: list[dict[str, None]] = [{} for _ in range(blocks)]
    for start, features in placed:
        if features and 0 <= start < blocks * block_size:
            texts[start // block_size].update(dict.fromkeys(features))
    return [tuple(block) or None for block in texts]
