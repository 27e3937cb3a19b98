"""Request keys: names of a prompt's blocks, the same for all pods.

The keys equal those of llm-d's router with `xxh64`. They cover seed, model, tokens and features.
Hashing a block costs about as much as a dictionary lookup.

Prompts of one conversation, or with one system prompt, share most of their tokens. A cache
therefore keeps the keys of parts of prompts: comparing a part costs a tenth of hashing its blocks.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from msgspec import Struct
from xxhash import xxh3_64_intdigest, xxh64_intdigest

from app.core.base.caches import ComputedMemo, Memo
from app.core.base.clock.pause import pause_if_possible
from app.extensions.kv_index.features import Features

ROOTS_LIMIT_BYTES = 1 << 18
"""Memory limit of the roots of models and adapters, in bytes."""
TOKEN_BYTES = 4
"""Size of a token id in a hashed block, in bytes."""
KEY_BYTES = 8
"""Size of a key in a hashed block, in bytes."""
PART_BLOCKS = 64
"""Number of blocks of a part of a prompt in the cache of keys."""
PARTS_PER_PAUSE = 48
"""Number of parts whose keys are computed without a pause, in about 4 ms."""
PARTS_LIMIT_BYTES = 32 << 20
"""Memory limit of all parts, in bytes."""
LISTED_KEY_BYTES = 44
"""Memory of a key and its place in a list, in bytes."""
PART_BYTES = 350
"""Memory of a part besides tokens and keys, in bytes."""


class RequestKeys:
    """Computes keys of 64 bits, in practice never 0: XXH64 over parent, token ids, and sized texts.

    Numbers have the machine's byte order; on little-endian machines the keys equal llm-d's.
    """

    def __init__(self, block_size: int, seed: str = "") -> None:
        self.block_size = block_size
        self.roots: Memo[str, int] = ComputedMemo(ROOTS_LIMIT_BYTES)
        """Model or adapter -> the parent key of first blocks."""
        width = TOKEN_BYTES * block_size
        self._block = struct.Struct(f"{width}s")
        self._parent_and_block = struct.Struct(f"=Q{width}s")
        self._parent_and_ids = struct.Struct(f"=Q{block_size}I")
        self._part = memoryview(bytearray(KEY_BYTES + PART_BLOCKS * width))
        """Buffer for the tokens of a part, behind a parent key."""
        self._links = [
            (start // KEY_BYTES, self._part[start : start + KEY_BYTES + width])
            for start in range(0, PART_BLOCKS * width, width)
        ]
        """Index, as a key in `_part`, and buffer of each block with its parent.

        A parent key overwrites the end of the previous block.
        """
        self._seed = xxh64_intdigest(seed.encode()).to_bytes(8, "little")

    def root(self, model: str) -> int:
        """Returns the parent key of a prompt's first block, for a model or an adapter."""
        root = self.roots.get(model)
        if root is None:
            root = xxh64_intdigest(self._seed + _sized((model,)))
            self.roots.put(model, root, 4 * len(model))
        return root

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        """Returns a key for every full block.

        `features` has an entry for every full block, or is None where no block has any.

        Raises:
            ValueError: a token id is negative or has more than 32 bits.
        """
        if features is None and len(tokens) == self.block_size:
            try:  # engines announce a reply's blocks one by one
                return [xxh64_intdigest(self._parent_and_ids.pack(parent, *tokens))]
            except struct.error:
                raise ValueError("a token ID must be a 32-bit integer") from None
        data = packed_ids(tokens).tobytes()
        if features is None and self.block_size % 2 == 0:
            return self._hash_in_place(parent, data)
        width = self._block.size
        block_count = len(data) // width
        blocks = self._block.iter_unpack(data[: block_count * width])
        block_features = features or [None] * block_count
        keys = []
        for (block,), texts in zip(blocks, block_features, strict=True):
            parent = xxh64_intdigest(
                self._parent_and_block.pack(parent, block) + _sized(texts or ())
            )
            keys.append(parent)
        return keys

    def _hash_in_place(self, parent: int, data: bytes) -> list[int]:
        """Returns the keys of blocks of an even number of tokens, a third faster."""
        keys: list[int] = []
        digest = xxh64_intdigest
        parents = self._part.cast("Q")
        width = self._block.size
        for start in range(0, len(data) - width + 1, PART_BLOCKS * width):
            part = data[start : start + PART_BLOCKS * width]
            self._part[KEY_BYTES : KEY_BYTES + len(part)] = part
            for index, link in self._links[: len(part) // width]:
                parents[index] = parent
                parent = digest(link)
                keys.append(parent)
        return keys


def packed_ids(ids: Sequence[int]) -> array[int]:
    """Returns token ids as 32-bit numbers, and such an array unchanged.

    Raises:
        ValueError: a token id is negative or has more than 32 bits.
    """
    if isinstance(ids, array) and ids.typecode == "I":
        return ids
    packed = array("I")
    try:
        packed.fromlist(ids if isinstance(ids, list) else list(ids))
    except (OverflowError, TypeError):
        raise ValueError("a token ID must be a 32-bit integer") from None
    return packed


def _sized(texts: Sequence[str]) -> bytes:
    parts = []
    for text in texts:
        data = text.encode(errors="surrogatepass")
        parts.append(len(data).to_bytes(8, "little") + data)
    return b"".join(parts)


class KeyedBlocks(Struct, frozen=True, gc=False):
    """Consecutive blocks: the key before the first block, all tokens, and all keys."""

    parent: int
    tokens: bytes
    keys: list[int]


class PrefixKeyCache:
    """Computes the keys of prompts; caches recent parts of prompts without features."""

    def __init__(self, request_keys: RequestKeys, limit_bytes: int = PARTS_LIMIT_BYTES) -> None:
        self.parts: Memo[int, KeyedBlocks] = ComputedMemo(limit_bytes)
        """Hash of tokens and parent -> part; two parts may share a hash."""
        self._request_keys = request_keys
        self._block_size = request_keys.block_size
        self._part_width = PART_BLOCKS * request_keys.block_size * TOKEN_BYTES
        """Size of the tokens of a part, in bytes."""
        self._tokens_per_pause = PARTS_PER_PAUSE * PART_BLOCKS * request_keys.block_size

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        """Returns the keys of `RequestKeys.keys`; pauses, because a million tokens take 100 ms."""
        if features is not None:
            return self._request_keys.keys(parent, tokens, features)
        ids = packed_ids(tokens)
        all_keys: list[int] = []
        for start in range(0, len(ids), self._tokens_per_pause):
            if start:
                parent = all_keys[-1]
                pause_if_possible()
            part = ids[start : start + self._tokens_per_pause]
            data = part.tobytes()
            keys = self._cached_keys(parent, data)
            cached_count = len(keys)
            if cached_count:
                parent = keys[-1]
                part = part[cached_count * self._block_size :]
            keys += self._request_keys.keys(parent, part)
            self._cache(parent, data, keys, cached_count)
            all_keys += keys
        return all_keys

    def _cached_keys(self, parent: int, data: bytes) -> list[int]:
        keys: list[int] = []
        get = self.parts.get
        width = self._part_width
        for start in range(0, len(data) - width + 1, width):
            tokens = data[start : start + width]
            part = get(xxh3_64_intdigest(tokens, parent))
            if part is None or part.tokens != tokens or part.parent != parent:
                break
            keys += part.keys
            parent = keys[-1]
        return keys

    def _cache(self, parent: int, data: bytes, keys: list[int], cached_count: int) -> None:
        """Caches the whole parts behind `cached_count` blocks, whose last key is `parent`."""
        width = self._part_width
        size_bytes = width + LISTED_KEY_BYTES * PART_BLOCKS + PART_BYTES
        for first in range(cached_count, len(keys) - PART_BLOCKS + 1, PART_BLOCKS):
            start = first // PART_BLOCKS * width
            tokens = data[start : start + width]
            part = KeyedBlocks(parent, tokens, keys[first : first + PART_BLOCKS])
            self.parts.put(xxh3_64_intdigest(tokens, parent), part, size_bytes)
            parent = part.keys[-1]
