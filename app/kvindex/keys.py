"""Request keys: what the blocks of a prompt are called, whichever pod has them.

They are those of llm-d (kv-cache specification, section 1.5) and cover seed, model, tokens, and features:

| generation | versions | hash |
|---|---|---|
| D | llm-d-kv-cache 0.5 and later | FNV-1a of 64 bits over CBOR |
| E | llm-d-router with `xxh64` | XXH64 over packed numbers |

E is the fast one: it costs about as much as a dictionary lookup, so nothing of it is remembered.

Features are what tells apart blocks of equal tokens. Engines publish them and requests state them, both in
the same order: the images that a block touches, then, in the first block of a prompt, the salt. An adapter is
not among them: its name stands in place of the model's.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, Protocol, TypeAlias, get_args

from xxhash import xxh64_intdigest

from app.kvcache import cbor
from app.kvcache.hashing import Chain, Extra, all_low64
from app.kvcache.memo import Memo
from app.kvcache.prompt import Placeholder

Generation: TypeAlias = Literal["D", "E"]
GENERATIONS: tuple[Generation, ...] = get_args(Generation)
DEFAULT_GENERATION: Generation = "E"

Features: TypeAlias = tuple[str, ...] | None
"""Identifiers of images and a salt, in the order of the prompt."""

ROOTS_BYTES = 1 << 18
_OFFSET_64, _PRIME_64 = 14695981039346656037, 1099511628211
_OFFSET_32, _PRIME_32 = 2166136261, 16777619


class RequestKeys(Protocol):
    """Keys of 64 bits, none of them 0 in practice."""

    block_size: int
    """Tokens of a block."""
    slice_blocks: int
    """Blocks whose keys are made in about a millisecond."""
    roots: Memo[str, int]
    """What comes before the first blocks, by model or adapter."""

    def root(self, model: str) -> int:
        """What comes before the first block of a prompt for a model, or an adapter."""

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        """A key for every full block. ValueError for a token id below 0 or of more than 32 bits.

        `features` has an entry for every full block, or is None where no block has any.
        """


def request_keys(generation: Generation, block_size: int, seed: str = "") -> RequestKeys:
    """The keys of a generation. ValueError for an unknown one, or a block without tokens."""
    if block_size < 1:
        raise ValueError(f"a block has at least one token, not {block_size}")
    match generation:
        case "D":
            return FnvKeys(block_size, seed)
        case "E":
            return Xxh64Keys(block_size, seed)
    raise ValueError(f"unknown generation of block keys {generation}")


class Xxh64Keys:
    """Generation E, in one pass over the packed tokens: parent, token ids, and texts with their lengths."""

    slice_blocks = 1024

    def __init__(self, block_size: int, seed: str = "") -> None:
        self.block_size = block_size
        self._block = struct.Struct(f"{4 * block_size}s")
        self._link = struct.Struct(f"<Q{4 * block_size}s")
        self._seed = xxh64_intdigest(seed.encode()).to_bytes(8, "little")
        self.roots: Memo[str, int] = Memo(ROOTS_BYTES)

    def root(self, model: str) -> int:
        root = self.roots.get(model)
        if root is None:
            root = xxh64_intdigest(self._seed + _sized((model,)))
            self.roots.put(model, root, 4 * len(model))
        return root

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        data, pack, digest = packed_ids(tokens), self._link.pack, xxh64_intdigest
        rest = len(data) % self._block.size
        blocks = self._block.iter_unpack(data[:-rest] if rest else data)
        if features is None:
            return [parent := digest(pack(parent, block)) for (block,) in blocks]
        both = zip(blocks, features, strict=True)
        return [parent := digest(pack(parent, block) + _sized(texts or ())) for (block,), texts in both]


class FnvKeys:
    """Generation D: CBOR arrays of a 64-bit parent, token ids, and null or maps of features."""

    slice_blocks = 128

    def __init__(self, block_size: int, seed: str = "") -> None:
        self.block_size = block_size
        self._seed = fnv1a_64(seed.encode())
        self._between = cbor.head(cbor.ARRAY, block_size)
        self._chain = Chain(block_size, self._hash)
        self.roots: Memo[str, int] = Memo(ROOTS_BYTES)

    def root(self, model: str) -> int:
        root = self.roots.get(model)
        if root is None:
            root = fnv1a_64(cbor.encode([self._seed, None, model]))
            self.roots.put(model, root, 4 * len(model))
        return root

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        packed_ids(tokens)  # refuses what is no token id
        return all_low64(self._chain.hashes(parent.to_bytes(8, "big"), tokens, features))

    def _hash(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        hashes = []
        for number, codes in enumerate(cbor.block_codes(ids, self.block_size)):
            extra = extras[number] if extras else None
            tail = cbor.encode([{"Hash": text} for text in extra]) if extra else cbor.NULL
            before = cbor.head(cbor.UNSIGNED, int.from_bytes(parent, "big"))
            parent = fnv1a_64(b"\x83" + before + self._between + codes + tail).to_bytes(8, "big")
            hashes.append(parent)
        return hashes


def packed_ids(ids: Sequence[int]) -> bytes:
    """Token ids as 32-bit numbers, little-endian. ValueError for one that is none."""
    packed = array("I")
    try:
        packed.fromlist(ids if isinstance(ids, list) else list(ids))
    except (OverflowError, TypeError):
        raise ValueError("a token id is not a number of 32 bits") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def fnv1a_64(data: bytes) -> int:
    """FNV-1a, by which llm-d names blocks. No package of it is kept up."""
    return _fnv1a(data, _OFFSET_64, _PRIME_64, (1 << 64) - 1)


def fnv1a_32(data: bytes) -> int:
    """FNV-1a, by which llm-d spreads pods."""
    return _fnv1a(data, _OFFSET_32, _PRIME_32, (1 << 32) - 1)


def _fnv1a(data: bytes, value: int, prime: int, mask: int) -> int:
    for byte in data:
        value = ((value ^ byte) * prime) & mask
    return value


def _sized(texts: Sequence[str]) -> bytes:
    parts = []
    for text in texts:
        data = text.encode(errors="surrogatepass")
        parts.append(len(data).to_bytes(8, "little") + data)
    return b"".join(parts)


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
