"""Prompts for the KV cache, and vLLM's hashes of their blocks.

A hash is SHA-256 or XXH3-128 of (previous hash, token ids, extra keys) in CBOR or pickle. Extra
keys are the adapter, the client's salt, and images: tagged in hashes, as in vLLM 0.31 and later,
bare in events.

A block's hash covers all tokens before the block. Hashes equal vLLM's for the same algorithm, block
size, PYTHONHASHSEED and version of extra keys.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

import xxhash
from msgspec import Struct

from app.core.base.caches import ComputedMemo, Memo
from app.core.engine.kvcache import PART_BLOCKS

if TYPE_CHECKING:
    from app.core.engine.lora import Adapter

Algorithm: TypeAlias = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
"""Values of vLLM's prefix-caching-hash-algo; values without `_cbor` hash a pickle."""

Extra: TypeAlias = tuple[Hashable, ...] | None
"""Extra keys of a block, hashed with its tokens; None if there are none."""

Part: TypeAlias = tuple[bytes, ...]
"""Hashes of adjacent blocks."""

Key: TypeAlias = tuple[Hashable, object]
"""An extra key: the hashed form, and the form in events."""

DEFAULT_SEED = "vllm-none-hash"
"""Seed of the first parent hash in vLLM 0.29 and later, if PYTHONHASHSEED is not set."""
SEED_BYTES = 32
"""Length of a drawn seed."""
MEMO_BYTES = 5 << 20
"""Default memory for remembered hashes, in bytes: half a million tokens in blocks of 16."""
HASH_BYTES = 88
"""Memory of a hash and its place in a tuple, in bytes."""


def low64(block_hash: bytes) -> int:
    """Returns the number that replaces a hash in events: its last eight bytes, big-endian."""
    return int.from_bytes(block_hash[-8:], "big")


class BlockHasher:
    """Computes the hashes of prompts' full blocks, as a vLLM with these settings does.

    Remembers hashes up to `memo_bytes`. `seed` is a PYTHONHASHSEED; xxHash draws a missing one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        block_size: int,
        seed: str | None,
        rng: Random,
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        """Prepares the algorithm.

        Raises:
            ValueError: The algorithm is unknown, or the block size is not positive.
        """
        if block_size < 1:
            raise ValueError("a block must have at least one token")
        self.block_size = block_size
        self._digest = _digest(algorithm)
        self._serialize = _serializer(algorithm)
        self.memo: Memo[object, Part] = ComputedMemo(memo_bytes)
        if seed is None:
            seed = DEFAULT_SEED
            if algorithm.startswith("xxhash"):
                seed = rng.randbytes(SEED_BYTES).hex()
        self.none_hash = self._digest(self._serialize(seed))
        """Hash before the first block of a prompt."""

    def hashes(
        self,
        token_ids: Sequence[int],
        extras: Sequence[Extra] | None = None,
        parent: bytes | None = None,
    ) -> list[bytes]:
        """Returns the hash of every full block of `token_ids`.

        `parent` is the hash before the first block. `extras` has one entry per full block, or is
        None if no block has any.

        Raises:
            ValueError: A token id is negative.
        """
        return [block_hash for part in self.parts(token_ids, extras, parent) for block_hash in part]

    def parts(
        self,
        token_ids: Sequence[int],
        extras: Sequence[Extra] | None = None,
        parent: bytes | None = None,
    ) -> Iterator[Part]:
        """Yields the same hashes in parts, so that the caller can pause between parts."""
        parent = self.none_hash if parent is None else parent
        count = len(token_ids) // self.block_size
        for first in range(0, count, PART_BLOCKS):
            last = min(first + PART_BLOCKS, count)
            ids = token_ids[first * self.block_size : last * self.block_size]
            part = self._part(parent, ids, extras and extras[first:last])
            parent = part[-1]
            yield part

    def _part(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> Part:
        packed_ids = array("I")
        try:
            packed_ids.fromlist(ids if isinstance(ids, list) else list(ids))
        except OverflowError:
            if min(ids) < 0:
                raise ValueError("token IDs must not be negative") from None
            return self._hash(parent, ids, extras)  # no vocabulary has ids beyond 32 bits
        packed = packed_ids.tobytes()
        key = parent, packed, extras and tuple(extras)
        part = self.memo.get(key)
        if part is None:
            part = self._hash(parent, ids, extras)
            # Blocks of a reply come one by one, and rarely repeat.
            if len(part) > 1:
                self.memo.put(
                    key, part, len(packed) + HASH_BYTES * len(part) + 2 * len(repr(extras))
                )
        return part

    def _hash(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> Part:
        digest = self._digest
        serialize = self._serialize
        size = self.block_size
        hashes: list[bytes] = []
        for start in range(0, len(ids), size):
            extra = extras[start // size] if extras else None
            parent = digest(serialize((parent, tuple(ids[start : start + size]), extra)))
            hashes.append(parent)
        return tuple(hashes)


def _serializer(algorithm: Algorithm) -> Callable[[object], bytes]:
    """Returns canonical CBOR (RFC 7049, section 3.9), or pickle of the latest protocol."""
    if algorithm.endswith("_cbor"):
        import cbor2  # takes 10 ms, and many servers have no cache

        return partial(cbor2.dumps, canonical=True)
    return partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


def _digest(algorithm: Algorithm) -> Callable[[bytes], bytes]:
    match algorithm:
        case "sha256" | "sha256_cbor":
            return _sha256_digest
        case "xxhash" | "xxhash_cbor":
            return xxhash.xxh3_128_digest
    raise ValueError(f"unknown block hash algorithm {algorithm}")


def _sha256_digest(data: bytes) -> bytes:
    return sha256(data).digest()


class Placeholder(Struct, gc=False, frozen=True):
    """Prompt tokens that stand for an image or other media: `length` tokens from `offset` on."""

    identifier: str
    offset: int
    length: int

    def blocks(self, block_size: int) -> range:
        """Returns the numbers of the blocks that have some of the tokens."""
        return range(self.offset // block_size, -(-(self.offset + self.length) // block_size))


class ExtraKeys:
    """Extra keys of a sequence's blocks of `block_size` tokens."""

    def __init__(
        self,
        block_size: int,
        adapter: Adapter | None = None,
        salt: str | None = None,
        placeholders: Sequence[Placeholder] = (),
        *,
        tags: bool = True,
        prompt_tokens: int = 0,
    ) -> None:
        """With `tags`, the hashed forms name their kind, as in vLLM 0.31 and later.

        In older versions, the hash of a block that ends with tokens of the reply contains the key
        of only one item, the last one of the prompt.
        """
        shared: list[Key] = []
        if adapter is not None:
            tagged: Hashable = ("lora", adapter.name, adapter.path)
            shared.append((tagged if tags else adapter.name, adapter.name))
        by_block: dict[int, list[Key]] = {}
        for placeholder in sorted(placeholders, key=attrgetter("offset")):
            identifier = placeholder.identifier
            for block in placeholder.blocks(block_size):
                offset = placeholder.offset - block * block_size
                item = (identifier, offset)
                key: Key = (("mm", *item) if tags else item), list(item)
                by_block.setdefault(block, []).append(key)
        if salt:
            by_block.setdefault(0, []).append((("cache_salt", salt) if tags else salt, salt))
        self._shared = _split(shared)
        """Keys of the blocks that are not in `_by_block`."""
        self._by_block = {block: _split(shared + keys) for block, keys in by_block.items()}
        reply_block = prompt_tokens // block_size
        if reply_block in by_block and reply_block and not tags:
            hashed, _ = _split(shared + by_block[reply_block][-1:])
            self._by_block[reply_block] = hashed, self._by_block[reply_block][1]

    def hashed(self, first: int, last: int) -> list[Extra] | None:
        """Returns the hashed extra keys of blocks `first` to `last` (exclusive).

        Returns None if no block has any.
        """
        if not self._by_block and self._shared[0] is None:
            return None
        return [self._by_block.get(block, self._shared)[0] for block in range(first, last)]

    def published(self, first: int, last: int) -> list[list[object] | None]:
        """Returns the extra keys of blocks `first` to `last` (exclusive), as in events."""
        if not self._by_block:
            return [self._shared[1]] * (last - first)
        return [self._by_block.get(block, self._shared)[1] for block in range(first, last)]


def _split(keys: list[Key]) -> tuple[Extra, list[object] | None]:
    if not keys:
        return None, None
    return tuple(hashed for hashed, _ in keys), [published for _, published in keys]


class Prompt(Struct, gc=False, frozen=True):
    """A prompt.

    Without `hashes` its blocks are neither cached nor found; without `reads` they are not found.
    """

    token_ids: Sequence[int]
    keys: ExtraKeys
    adapter: Adapter | None
    reads: bool
    hashes: list[bytes] | None
