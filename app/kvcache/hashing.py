"""vLLM's block hashes: SHA-256 or XXH3-128 of (hash before, token ids, extra keys) in CBOR or pickle.

A block's hash equals that of a vLLM with the same algorithm, block size and PYTHONHASHSEED (kv-cache
specification, section 7.2), extra keys being those of its version.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from random import Random
from struct import Struct
from typing import Literal, TypeAlias

import xxhash

from app.kvcache import cbor
from app.kvcache.chain import MEMO_BLOCKS, Chain, Extra, HashBlocks
from app.kvcache.memo import Memo
from app.kvcache.token_codes import block_codes

Algorithm: TypeAlias = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
"""Values of vLLM's prefix-caching-hash-algo; those without `_cbor` hash a pickle."""

DEFAULT_SEED = "vllm-none-hash"
"""What vLLM 0.29 and later derive the first parent from when PYTHONHASHSEED is not set."""
SEED_BYTES = 32

_TAILS = 1024


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
    return _digest(algorithm)(_serialize(algorithm)(seed))


class BlockHasher:
    """Hashes of the full blocks of prompts, as a vLLM with these settings computes them."""

    def __init__(
        self,
        algorithm: Algorithm,
        block_size: int,
        seed: str | None,
        rng: Random,
        memo_blocks: int = MEMO_BLOCKS,
    ) -> None:
        self.none_hash = none_hash(algorithm, seed, rng)
        self.chain = Chain(block_size, hash_function(algorithm, block_size), memo_blocks)

    def hashes(self, token_ids: Sequence[int], extras: Sequence[Extra] | None = None) -> list[bytes]:
        """The hash of every full block of a prompt; `extras` as of `Chain.hashes`."""
        return self.chain.hashes(self.none_hash, token_ids, extras)


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
        self._tails: Memo[Extra, bytes] = Memo(_TAILS)

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        before, between, digest = self._before, self._between, self._digest
        hashes = []
        for number, codes in enumerate(block_codes(ids, self._block_size)):
            tail = self._tail(extras[number]) if extras else cbor.NULL
            parent = digest(before + parent + between + codes + tail)
            hashes.append(parent)
        return hashes

    def _tail(self, extra: Extra) -> bytes:
        known = self._tails.get(extra)
        if known is None:
            known = cbor.encode(extra)
            self._tails.put([extra], [known])
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


def _serialize(algorithm: Algorithm) -> Callable[[object], bytes]:
    return cbor.encode if algorithm.endswith("_cbor") else _pickled


def _digest(algorithm: Algorithm) -> Callable[[bytes], bytes]:
    match algorithm:
        case "sha256" | "sha256_cbor":
            return lambda data: sha256(data).digest()
        case "xxhash" | "xxhash_cbor":
            return xxhash.xxh3_128_digest
    raise ValueError(f"unknown block hash algorithm {algorithm}")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
