"""CBOR for block hashes: the value types that hashes cover, and a fast path for many token ids.

Values are in canonical form (RFC 7049, section 3.9): shortest integers, definite lengths, map keys sorted by
their encoded form, shorter ones first.

Looking up a code for each of many token ids would be slow: a large vocabulary exceeds the CPU's caches.
Instead, a few operations on byte strings encode all ids together. An id becomes six characters: a mark for
the start of a block, CBOR's head, and the four bytes of the id. Unneeded positions hold a character outside
the range of bytes, and all of these are deleted at the end. (From 24 on an id has a head: 0x18 with one byte,
0x19 with two, 0x1a with four.)
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP = range(6)
NULL = b"\xf6"


def head(major: int, value: int) -> bytes:
    """Returns the head of an item of type `major` with a value or length. Raises ValueError from 2**64 on."""
    if value < 24:
        return bytes((major << 5 | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * width:
            return bytes((major << 5 | code,)) + value.to_bytes(width, "big")
    raise ValueError("an integer of more than 64 bits has no CBOR head")


def encode(value: object) -> bytes:
    """Encodes None, integers, bytes, text, and nested sequences and maps. Raises TypeError otherwise."""
    match value:
        case None:
            return NULL
        case int() if not isinstance(value, bool):
            return head(UNSIGNED, value) if value >= 0 else head(NEGATIVE, -1 - value)
        case bytes():
            return head(BYTES, len(value)) + value
        case str():
            text = value.encode(errors="surrogatepass")
            return head(TEXT, len(text)) + text
        case Sequence():
            return head(ARRAY, len(value)) + b"".join(map(encode, value))
        case Mapping():
            pairs = sorted((len(key := encode(k)), key, encode(v)) for k, v in value.items())
            return head(MAP, len(pairs)) + b"".join(key + item for _, key, item in pairs)
    raise TypeError(f"no CBOR for {type(value).__name__}")


_NOTHING, _START = "\u0100", "\u0101"

# Tables that map a byte of an id to a bit. The bits together are the id's kind, which determines its width.
_HIGH = bytes([0] + [4] * 255)
_SECOND = bytes([0] + [2] * 255)
_LOWEST = bytes([0] * 24 + [1] * 232)

# By kind from 0 to 7: the head, and flags (1) for absent characters.
_HEAD = bytes([0, 0x18, 0x19, 0x19, 0x1A, 0x1A, 0x1A, 0x1A]).ljust(256)
_NO_HEAD = bytes([1, 0, 0, 0, 0, 0, 0, 0]).ljust(256)
_NO_HIGH = bytes([1, 1, 1, 1, 0, 0, 0, 0]).ljust(256)
_NO_SECOND = bytes([1, 1, 0, 0, 0, 0, 0, 0]).ljust(256)


def block_codes(ids: Sequence[int], block_size: int) -> list[bytes]:
    """Returns the codes of each block's ids. Raises ValueError for an id above 64 bits."""
    try:
        packed = array("I", ids)
    except OverflowError:
        codes = [encode(id_) for id_ in ids]
        return [b"".join(codes[start : start + block_size]) for start in range(0, len(ids), block_size)]
    if sys.byteorder == "big":
        packed.byteswap()
    return [block.encode("latin-1") for block in _text(packed.tobytes(), block_size).split(_START)[1:]]


def _text(packed: bytes, block_size: int) -> str:
    """Returns all codes as Latin-1, each block after a mark. `packed` has four bytes per id, lowest first."""
    count = len(packed) // 4
    lowest, second, third, fourth = (packed[byte::4] for byte in range(4))
    kind = _any(_any(third, fourth).translate(_HIGH), second.translate(_SECOND), lowest.translate(_LOWEST))
    start = (b"\1" + bytes(block_size - 1)) * (count // block_size)
    # UTF-16: the low byte of each character, then the high byte, which is 1 for an absent character.
    columns = (
        *(start, b"\1" * count),
        *(kind.translate(_HEAD), kind.translate(_NO_HEAD)),
        *(fourth, kind.translate(_NO_HIGH)),
        *(third, kind.translate(_NO_HIGH)),
        *(second, kind.translate(_NO_SECOND)),
        *(lowest, bytes(count)),
    )
    characters = bytearray(len(columns) * count)
    for place, column in enumerate(columns):
        characters[place :: len(columns)] = column
    return characters.decode("utf-16-le").replace(_NOTHING, "")


def _any(*columns: bytes) -> bytes:
    bits = 0
    for column in columns:
        bits |= int.from_bytes(column, "little")
    return bits.to_bytes(len(columns[0]), "little")
