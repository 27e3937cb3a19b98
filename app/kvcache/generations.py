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
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, TypeAlias, get_args

from xxhash import xxh64_digest, xxh64_intdigest

from app.kvcache import cbor
from app.kvcache.chain import MEMO_BLOCKS, Chain, Extra, HashBlocks, Part
from app.kvcache.fnv import fnv1a_64
from app.kvcache.hashing import CborBlocks
from app.kvcache.token_codes import block_codes

GenerationName: TypeAlias = Literal["A", "B", "C", "D", "E"]
GENERATIONS: tuple[GenerationName, ...] = get_args(GenerationName)

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
            before = xxh64_intdigest(seed.encode())
            return lambda model: _xx(before, (), (model,)), RawBlocks(block_size).hashes
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
    """Blocks as little-endian numbers: a 64-bit parent, 32-bit token ids, and image hashes with lengths."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def hashes(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        links = []
        for start in range(0, len(ids), self._block_size):
            extra = extras[start // self._block_size] if extras else None
            block = ids[start : start + self._block_size]
            parent = _xx(int.from_bytes(parent, "big"), block, extra or ())
            links.append(parent)
        return links


def _without_extras(hashes: HashBlocks) -> HashBlocks:
    return lambda parent, ids, extras: hashes(parent, ids, None)


def _sha(data: bytes) -> bytes:
    return sha256(data).digest()


def _sha_64(data: bytes) -> bytes:
    return sha256(data).digest()[-8:]


def _fnv(data: bytes) -> bytes:
    return fnv1a_64(data).to_bytes(8, "big")


def _xx(parent: int, ids: Sequence[int], extras: Sequence[str]) -> bytes:
    try:
        data = struct.pack(f"<Q{len(ids)}I", parent, *ids)
    except struct.error:
        raise ValueError("a token id of more than 32 bits") from None
    for text in map(str.encode, extras):
        data += len(text).to_bytes(8, "little") + text
    return xxh64_digest(data)
