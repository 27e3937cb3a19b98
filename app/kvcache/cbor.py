"""Canonical CBOR (RFC 7049, section 3.9) of the few kinds of values that block hashes cover.

Shortest integers, definite lengths, map keys sorted by their encoded form, shorter ones first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP = range(6)
"""Major types."""
NULL = b"\xf6"


def head(major: int, value: int) -> bytes:
    """The head of an item of type `major`: its value, or how long it is. ValueError from 2**64 on."""
    if value < 24:
        return bytes((major << 5 | value,))
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * width:
            return bytes((major << 5 | code,)) + value.to_bytes(width, "big")
    raise ValueError("an integer of more than 64 bits has no CBOR head")


def encode(value: object) -> bytes:
    """`value` of None, integers, bytes, text, and sequences and maps of those. TypeError for other kinds."""
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
