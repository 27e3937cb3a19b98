"""The request keys of llm-d's KV cache index, generation by generation (kv-cache specification, section 1.5).

| | versions | hash | covers |
|---|---|---|---|
| A | manager 0.2.0 to 0.3.1 | SHA-256, 64 bits of it | seed, tokens |
| B | manager 0.3.2 to 0.4.0 | SHA-256 | seed, tokens; keys are vLLM's `sha256_cbor` of that seed |
| C | manager of December 2025 | FNV-1a of 64 bits | seed, tokens |
| D | llm-d-kv-cache 0.5 and later | FNV-1a of 64 bits | seed, model, tokens, images |
| E | llm-d-router with `xxh64` | XXH64 | seed, model, tokens, images |
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, TypeAlias, get_args

from xxhash import xxh64_intdigest

from app.kvcache import cbor
from app.kvcache.chain import MEMO_BLOCKS, Chain, Extra, HashBlocks, Part
from app.kvcache.fnv import fnv1a_64
from app.kvcache.hashing import CborBlocks
from app.kvcache.token_codes import block_codes

GenerationName: TypeAlias = Literal["A", "B", "C", "D", "E"]
GENERATIONS: tuple[GenerationName, ...] = get_args(GenerationName)

_PARENT = struct.Struct("<Q")

Link: TypeAlias = bytes
"""What the next block's hash covers of the blocks before it: 8 bytes, or 32 in generation B."""


class KeyChain:
    """Keys of the blocks of prompts in one generation, for one block size and seed.

    Extras are tuples of the hashes of the images in a block; generations that know no images ignore them.
    Blocks are chained by links; `low64` of a link is its key.
    """

    def __init__(
        self, generation: GenerationName, block_size: int, seed: str = "", memo_blocks: int = MEMO_BLOCKS
    ) -> None:
        self.generation = generation
        self._root, hash_blocks = _rules(generation, block_size, seed)
        self._chain = Chain(block_size, hash_blocks, memo_blocks)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._chain.block_size

    def root(self, model: str) -> Link:
        """What comes before the first block of a prompt for `model`, an adapter's name if it has one."""
        return self._root(model)

    def links(
        self, parent: Link, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> list[Link]:
        """A link for every full block. ValueError for an id that is negative or, in E, above 32 bits."""
        return self._chain.hashes(parent, token_ids, extras)

    def parts(
        self, parent: Link, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> Iterator[Part]:
        """The same links, some at a time: whoever shares a thread lets others run in between."""
        return self._chain.parts(parent, token_ids, extras)


def _rules(
    generation: GenerationName, block_size: int, seed: str
) -> tuple[Callable[[str], Link], HashBlocks]:
    """The root of each model, and how blocks are hashed. ValueError for an unknown generation."""
    match generation:
        case "A":
            return lambda model: _sha_64(cbor.encode(seed)), ShortBlocks(_sha_64, block_size).hashes
        case "B":
            return lambda model: _sha(cbor.encode(seed)), _without_extras(CborBlocks(_sha, block_size).hashes)
        case "C":
            return lambda model: _fnv(seed.encode()), ShortBlocks(_fnv, block_size).hashes
        case "D":
            start = fnv1a_64(seed.encode())
            blocks = ShortBlocks(_fnv, block_size, images=True)
            return lambda model: _fnv(cbor.encode([start, None, model])), blocks.hashes
        case "E":
            return lambda model: raw_root(seed, model).to_bytes(8, "big"), RawBlocks(block_size).hashes
    raise ValueError(f"unknown generation of block keys {generation}")


class ShortBlocks:
    """Blocks as CBOR arrays of a 64-bit parent, token ids, and null or maps of image hashes."""

    def __init__(self, digest: Callable[[bytes], bytes], block_size: int, images: bool = False) -> None:
        self._digest = digest
        self._block_size = block_size
        self._images = images
        self._between = cbor.head(cbor.ARRAY, block_size)

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        links = []
        for number, codes in enumerate(block_codes(ids, self._block_size)):
            tail = self._tail(extras[number]) if extras else cbor.NULL
            before = cbor.head(cbor.UNSIGNED, int.from_bytes(parent, "big"))
            parent = self._digest(b"\x83" + before + self._between + codes + tail)
            links.append(parent)
        return links

    def _tail(self, extra: Extra) -> bytes:
        return cbor.encode([{"Hash": image} for image in extra]) if extra and self._images else cbor.NULL


class RawBlocks:
    """Blocks as little-endian numbers: a 64-bit parent, 32-bit token ids, and texts with their lengths."""

    def __init__(self, block_size: int) -> None:
        self._width = 4 * block_size

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        keys = self.keys(int.from_bytes(parent, "big"), ids, extras)
        return [key.to_bytes(8, "big") for key in keys]

    def keys(self, parent: int, tokens: Sequence[int], features: Sequence[Extra] | None = None) -> list[int]:
        """The same as numbers, in one pass over the packed ids. ValueError for an id of no 32 bits."""
        data, width = packed_ids(tokens), self._width
        pack, digest, keys = _PARENT.pack, xxh64_intdigest, []
        starts = range(0, len(data) - width + 1, width)
        if features is None:
            for start in starts:
                parent = digest(pack(parent) + data[start : start + width])
                keys.append(parent)
            return keys
        for start, texts in zip(starts, features, strict=True):
            block = data[start : start + width]
            parent = digest(pack(parent) + block + _sized(texts or ()))
            keys.append(parent)
        return keys


def raw_root(seed: str, model: str) -> int:
    """The key that comes before the first block of a prompt for `model` in generation E."""
    return xxh64_intdigest(_PARENT.pack(xxh64_intdigest(seed.encode())) + _sized((model,)))


def packed_ids(ids: Sequence[int]) -> bytes:
    """Token ids as 32-bit numbers, little-endian. ValueError for one that is none."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError):
        raise ValueError("a token id is not a number of 32 bits") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _sized(texts: Sequence[str]) -> bytes:
    parts = []
    for text in texts:
        data = text.encode(errors="surrogatepass")
        parts.append(len(data).to_bytes(8, "little") + data)
    return b"".join(parts)


def _without_extras(hashes: HashBlocks) -> HashBlocks:
    return lambda parent, ids, extras: hashes(parent, ids, None)


def _sha(data: bytes) -> bytes:
    return sha256(data).digest()


def _sha_64(data: bytes) -> bytes:
    return sha256(data).digest()[-8:]


def _fnv(data: bytes) -> bytes:
    return fnv1a_64(data).to_bytes(8, "big")
