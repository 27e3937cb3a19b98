"""vLLM's block hashes: SHA-256 or XXH3-128 of (hash before, token ids, extra keys) in CBOR or pickle.

A block's hash covers everything before it, and equals that of a vLLM with the same algorithm, block size and
PYTHONHASHSEED (kv-cache specification, section 7.2), extra keys being those of its version.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from random import Random
from struct import Struct
from typing import Literal, TypeAlias

import xxhash

from app.kvcache import cbor
from app.kvcache.memo import Memo

Algorithm: TypeAlias = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
"""Values of vLLM's prefix-caching-hash-algo; those without `_cbor` hash a pickle."""

Extra: TypeAlias = tuple[Hashable, ...] | None
"""What a block's hash covers besides tokens, or None."""

HashBlocks: TypeAlias = Callable[[bytes, Sequence[int], Sequence[Extra] | None], list[bytes]]
"""The hashes of the blocks that some token ids fill, from the hash before them and an extra for each."""

Part: TypeAlias = tuple[bytes, ...]
"""Hashes of some consecutive blocks."""

DEFAULT_SEED = "vllm-none-hash"
"""What vLLM 0.29 and later derive the first parent from when PYTHONHASHSEED is not set."""
SEED_BYTES = 32
PART_BLOCKS = 64
"""Blocks hashed in one go, about 0.1 ms, and remembered together."""
MEMO_BYTES = 5 << 20
"""Hashes of half a million tokens in blocks of 16."""
HASH_BYTES = 80
"""A hash in memory, and its place in a tuple."""
EXTRAS_MEMO_BYTES = 1 << 18


def low64(block_hash: bytes) -> int:
    """The number that events carry in place of a hash: its last eight bytes, big-endian."""
    return int.from_bytes(block_hash[-8:], "big")


def all_low64(hashes: Sequence[bytes]) -> list[int]:
    """The numbers of hashes of one length, at a third of the cost of `low64` for each."""
    if not hashes:
        return []
    return [number for (number,) in _last_eight(len(hashes[0])).iter_unpack(b"".join(hashes))]


@cache
def _last_eight(length: int) -> Struct:
    return Struct(f">{length - 8}xQ")


def none_hash(algorithm: Algorithm, seed: str | None, rng: Random) -> bytes:
    """What stands for the hash before the first block, from `seed`, the PYTHONHASHSEED of a vLLM.

    Without a seed (None) it is the same for every server where the algorithm is cryptographic, and drawn from
    `rng` where it is not.
    """
    if seed is None:
        seed = rng.randbytes(SEED_BYTES).hex() if algorithm.startswith("xxhash") else DEFAULT_SEED
    serialize = cbor.encode if algorithm.endswith("_cbor") else _pickled
    return _digest(algorithm)(serialize(seed))


class BlockHasher:
    """Hashes of the full blocks of prompts, as a vLLM with these settings computes them."""

    def __init__(
        self,
        algorithm: Algorithm,
        block_size: int,
        seed: str | None,
        rng: Random,
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        self.none_hash = none_hash(algorithm, seed, rng)
        self.chain = Chain(block_size, hash_function(algorithm, block_size), memo_bytes)

    def hashes(self, token_ids: Sequence[int], extras: Sequence[Extra] | None = None) -> list[bytes]:
        """The hash of every full block of a prompt; `extras` as of `Chain.hashes`."""
        return self.chain.hashes(self.none_hash, token_ids, extras)


class Chain:
    """The hashes of consecutive full blocks of `block_size` tokens.

    Remembers hashes of `memo_bytes`, so that a prompt seen before costs next to nothing.
    """

    def __init__(self, block_size: int, hash_blocks: HashBlocks, memo_bytes: int = MEMO_BYTES) -> None:
        if block_size < 1:
            raise ValueError("a block has at least one token")
        self.block_size = block_size
        self.memo: Memo[object, Part] = Memo(memo_bytes)
        self._hash_blocks = hash_blocks

    def hashes(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> list[bytes]:
        """The hash of every full block of `token_ids`, `parent` being the one before the first.

        `extras` has an entry for every full block, or is None when no block has one. ValueError for an id
        below 0.
        """
        return [block_hash for part in self.parts(parent, token_ids, extras) for block_hash in part]

    def parts(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> Iterator[Part]:
        """The same hashes, a part at a time: whoever shares a thread lets others run in between."""
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
                raise ValueError("token ids are not negative") from None
            return tuple(self._hash_blocks(parent, ids, extras))  # ids of no vocabulary
        packed = packed_ids.tobytes()
        key = parent, packed, extras and tuple(extras)
        part = self.memo.get(key)
        if part is None:
            part = tuple(self._hash_blocks(parent, ids, extras))
            # Blocks of a reply come one by one, and hardly ever again.
            if len(part) > 1:
                # Mostly it is one object for all blocks.
                extra = sum(map(extras_bytes, {id(each): each for each in extras or ()}.values()))
                self.memo.put(key, part, len(packed) + HASH_BYTES * len(part) + extra)
        return part


def extras_bytes(value: object) -> int:
    """About what extra keys take in memory: texts, numbers, and tuples of them."""
    if isinstance(value, str | bytes):
        return 60 + len(value)
    if isinstance(value, Sequence):
        return 60 + sum(map(extras_bytes, value))
    return 40


def hash_function(algorithm: Algorithm, block_size: int) -> HashBlocks:
    """How `algorithm` hashes blocks of `block_size` tokens. ValueError for an unknown one."""
    digest = _digest(algorithm)
    if algorithm.endswith("_cbor"):
        return CborBlocks(digest, block_size).hashes
    return PickledBlocks(digest, block_size).hashes


class CborBlocks:
    """Blocks as CBOR arrays of parent, token ids and extra."""

    def __init__(self, digest: Callable[[bytes], bytes], block_size: int) -> None:
        self._digest = digest
        self._block_size = block_size
        self._before = b"\x83" + cbor.head(cbor.BYTES, len(digest(b"")))
        self._between = cbor.head(cbor.ARRAY, block_size)
        self._tails: Memo[Extra, bytes] = Memo(EXTRAS_MEMO_BYTES)

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        before, between, digest = self._before, self._between, self._digest
        hashes = []
        for number, codes in enumerate(cbor.block_codes(ids, self._block_size)):
            tail = self._tail(extras[number]) if extras else cbor.NULL
            parent = digest(before + parent + between + codes + tail)
            hashes.append(parent)
        return hashes

    def _tail(self, extra: Extra) -> bytes:
        known = self._tails.get(extra)
        if known is None:
            known = cbor.encode(extra)
            self._tails.put(extra, known, len(known) + extras_bytes(extra))
        return known


class PickledBlocks:
    """Blocks as pickled tuples of parent, token ids and extra."""

    def __init__(self, digest: Callable[[bytes], bytes], block_size: int) -> None:
        self._digest = digest
        self._block_size = block_size

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        size, digest = self._block_size, self._digest
        hashes = []
        for start in range(0, len(ids), size):
            extra = extras[start // size] if extras else None
            parent = digest(_pickled((parent, tuple(ids[start : start + size]), extra)))
            hashes.append(parent)
        return hashes


def _digest(algorithm: Algorithm) -> Callable[[bytes], bytes]:
    match algorithm:
        case "sha256" | "sha256_cbor":
            return lambda data: sha256(data).digest()
        case "xxhash" | "xxhash_cbor":
            return xxhash.xxh3_128_digest
    raise ValueError(f"unknown block hash algorithm {algorithm}")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
