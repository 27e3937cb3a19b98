"""Canonical CBOR (RFC 7049, section 3.9) of the few kinds of values that block hashes cover.

Shortest integers, definite lengths, map keys sorted by their encoded form, shorter ones first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP = range(6)
"""Major types."""
NULL = b"\xf6"

MOST_CODES = 1 << 18
"""Ids from here on (no vocabulary has them) are encoded each time, so that a table stays bounded."""
_STEP = 1 << 14


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


class TokenCodes:
    """CBOR of token ids, looked up in a table that grows with the ids that are seen."""

    def __init__(self) -> None:
        self._table: list[bytes] = []

    def __len__(self) -> int:
        """Ids in the table."""
        return len(self._table)

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """The code of each of `ids`, which are 0 or above."""
        try:
            return list(map(self._table.__getitem__, ids))
        except IndexError:
            largest = max(ids)
        if largest >= MOST_CODES:
            return list(map(encode, ids))
        self._grow(largest)
        return list(map(self._table.__getitem__, ids))

    def _grow(self, largest: int) -> None:
        end = (largest // _STEP + 1) * _STEP
        # An id and its head are one big-endian number: what stands before the id depends on its width only.
        for first, last, width, mark in (
            (0, 24, 1, 0),
            (24, 1 << 8, 2, 0x18 << 8),
            (1 << 8, 1 << 16, 3, 0x19 << 16),
            (1 << 16, end, 5, 0x1A << 32),
        ):
            numbers = range(mark + max(first, len(self._table)), mark + min(last, end))
            self._table += [number.to_bytes(width, "big") for number in numbers]
