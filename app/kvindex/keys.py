"""Request keys: names of a prompt's blocks, the same for all pods.

The keys equal those of llm-d's router with `xxh64` (kv-cache specification, section 1.5, generation
E). They cover seed, model, tokens and features. Hashing a block costs about as much as a dictionary
lookup.

Prompts of one conversation, or with one system prompt, share most of their tokens. A cache
therefore keeps the keys of parts of prompts: comparing a part costs a tenth of hashing its blocks.

Features distinguish blocks of equal tokens. Engines publish features, and requests contain them, in
the same order: the images in a block, then, in a prompt's first block, the salt. An adapter is no
feature; the adapter's name replaces the model's.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from xxhash import xxh3_64_intdigest, xxh64_intdigest

from app.engine.kvcache.hashing import Placeholder
from app.engine.kvcache.memo import Memo

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
        for at, key in enumerate(keys or ()):
            if isinstance(key, list) and key:
                key = key[0]
            if isinstance(key, bytes):
                key = key.hex()
            if isinstance(key, str) and (at or key != adapter):
                texts[key] = None
        features.append(tuple(texts) or None)
    return features if any(features) else None


def requested_features(
    blocks: int, block_size: int, media: Sequence[Placeholder], salt: str | None
) -> list[Features] | None:
    """Returns the features of a prompt's first `blocks` blocks; None if no block has any."""
    texts: list[dict[str, None]] = [{} for _ in range(blocks)]
    for item in sorted(media, key=lambda item: item.offset):
        touched = item.blocks(block_size)
        for block in range(max(0, touched.start), min(touched.stop, blocks)):
            texts[block][item.identifier] = None
    if salt and texts:
        texts[0][salt] = None
    return [tuple(block) or None for block in texts] if any(texts) else None


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


ROOTS_BYTES = 1 << 18
"""Memory of the roots of models and adapters, in bytes."""
TOKEN_BYTES, KEY_BYTES = 4, 8
PART_BLOCKS, PARTS_BYTES = 64, 32 << 20
"""Blocks of a part of a prompt in the cache of keys, and memory of all parts, in bytes."""
NUMBER_BYTES, PART_BYTES = 44, 350
"""Memory of a key and its place in a list, and of a part besides tokens and keys, in bytes."""


class RequestKeys:
    """Computes keys of 64 bits, in practice never 0: XXH64 over parent, token ids, and sized texts.

    Numbers have the machine's byte order; on little-endian machines the keys equal llm-d's.
    """

    def __init__(self, block_size: int, seed: str = "") -> None:
        self.block_size = block_size
        self.roots: Memo[str, int] = Memo(ROOTS_BYTES)
        """Model or adapter -> the parent key of first blocks."""
        width = TOKEN_BYTES * block_size
        self._block = struct.Struct(f"{width}s")
        self._link = struct.Struct(f"=Q{width}s")
        self._part = memoryview(bytearray(KEY_BYTES + PART_BLOCKS * width))
        starts = range(0, PART_BLOCKS * width, width)
        self._links = [(at // KEY_BYTES, self._part[at : at + KEY_BYTES + width]) for at in starts]
        """Place, parent and tokens of each block; a parent replaces the end of the block before."""
        self._whole = struct.Struct(f"=Q{block_size}I")
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
        """Returns a key for every full block. ValueError for a token id below 0 or of more than 32
        bits.

        `features` has an entry for every full block, or is None where no block has any.
        """
        if features is None and len(tokens) == self.block_size:
            try:  # engines announce a reply's blocks one by one
                return [xxh64_intdigest(self._whole.pack(parent, *tokens))]
            except struct.error:
                raise ValueError("a token id is not a number of 32 bits") from None
        data, pack, digest = packed_ids(tokens).tobytes(), self._link.pack, xxh64_intdigest
        if features is None and self.block_size % 2 == 0:
            return self._linked(parent, data)
        count = len(data) // self._block.size
        blocks = self._block.iter_unpack(data[: count * self._block.size])
        both = zip(blocks, features or [None] * count, strict=True)
        return [
            parent := digest(pack(parent, block) + _sized(texts or ())) for (block,), texts in both
        ]

    def _linked(self, parent: int, data: bytes) -> list[int]:
        """Returns the keys of blocks of an even number of tokens, hashed in place:

        a third faster.
        """
        keys, digest, parents = list[int](), xxh64_intdigest, self._part.cast("Q")
        width = self._block.size
        for start in range(0, len(data) - width + 1, PART_BLOCKS * width):
            part = data[start : start + PART_BLOCKS * width]
            self._part[KEY_BYTES : KEY_BYTES + len(part)] = part
            for place, link in self._links[: len(part) // width]:
                parents[place] = parent
                parent = digest(link)
                keys.append(parent)
        return keys


def packed_ids(ids: Sequence[int]) -> array[int]:
    """Returns token ids as 32-bit numbers, and such an array unchanged.

    ValueError for an invalid id.
    """
    if isinstance(ids, array) and ids.typecode == "I":
        return ids
    packed = array("I")
    try:
        packed.fromlist(ids if isinstance(ids, list) else list(ids))
    except (OverflowError, TypeError):
        raise ValueError("a token id is not a number of 32 bits") from None
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

    def __init__(self, request_keys: RequestKeys, limit_bytes: int = PARTS_BYTES) -> None:
        self.parts: Memo[int, KeyedBlocks] = Memo(limit_bytes)
        """Hash of tokens and parent -> part; two parts may share a hash."""
        self._request_keys = request_keys
        self._size = request_keys.block_size
        self._part = PART_BLOCKS * request_keys.block_size * TOKEN_BYTES

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        """Returns the keys of `RequestKeys.keys`."""
        if features is not None:
            return self._request_keys.keys(parent, tokens, features)
        ids = packed_ids(tokens)
        data = ids.tobytes()
        keys = self._known(parent, data)
        known = len(keys)
        if known:
            parent = keys[-1]
        keys += self._request_keys.keys(parent, ids[known * self._size :] if known else ids)
        self._remember(parent, data, keys, known)
        return keys

    def _known(self, parent: int, data: bytes) -> list[int]:
        keys: list[int] = []
        get, width = self.parts.get, self._part
        for start in range(0, len(data) - width + 1, width):
            tokens = data[start : start + width]
            part = get(xxh3_64_intdigest(tokens, parent))
            if part is None or part.tokens != tokens or part.parent != parent:
                break
            keys += part.keys
            parent = keys[-1]
        return keys

    def _remember(self, parent: int, data: bytes, keys: list[int], known: int) -> None:
        """Caches the whole parts behind `known` blocks; `parent` is the last key of these blocks."""
        width = self._part
        size = width + NUMBER_BYTES * PART_BLOCKS + PART_BYTES
        for first in range(known, len(keys) - PART_BLOCKS + 1, PART_BLOCKS):
            start = first // PART_BLOCKS * width
            tokens = data[start : start + width]
            own = keys[first : first + PART_BLOCKS]
            self.parts.put(
                xxh3_64_intdigest(tokens, parent), KeyedBlocks(parent, tokens, own), size
            )
            parent = own[-1]
