"""Catalogue of recorded rows by prompt hash and by length (simulator.md 5.10).

SQLite cannot draw a random row of a given length without a full scan, and files often have no index. Arrays
keep hash, length and key of all rows instead: 32 bytes a row.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256
from random import Random

Turn = tuple[str, str]
"""Role and text of a message; a text prompt is one turn of the user."""

ROLES = frozenset({"user", "assistant"})
PREFIX_BYTES = 8
"""Bytes of a hash that are kept; enough to distinguish millions of prompts."""


def ids_hash(ids: Sequence[int]) -> bytes:
    """SHA-256 of the prompt's token ids, each as four bytes, the lowest first."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return sha256(packed).digest()


def text_hash(turns: Iterable[Turn]) -> bytes:
    """SHA-256 of the prompt's text with a headline per turn, as older files compute it."""
    heads = ((role if role in ROLES else "unknown", text) for role, text in turns)
    written = "".join(f"### {role}:\n{text}\n" for role, text in heads)
    return sha256(written.encode("utf-8", "surrogatepass")).digest()


class Catalogue:
    """All rows with at least one token, in two orders: by length, and by hash and then length.

    Args:
        rows: (`prompt_hash`, `n_gen_tokens`, key) of each row as read from SQLite. A row without a positive
            length is left out; a value that is no hash matches no prompt.
    """

    def __init__(self, rows: Iterable[tuple[object, object, int]]) -> None:
        self._prefixes, self._lengths, self._keys = array("Q"), array("q"), array("q")
        for digest, length, key in rows:
            if isinstance(length, int) and length > 0:
                self._prefixes.append(_prefix(digest) if isinstance(digest, bytes) else 0)
                self._lengths.append(length)
                self._keys.append(key)
        self._by_length = array("I", sorted(range(len(self._keys)), key=self._lengths.__getitem__))
        # Sorting keeps the order of equals: rows of the same hash stay in the order of their length.
        self._by_hash = array("I", sorted(self._by_length, key=self._prefixes.__getitem__))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        arrays = (self._prefixes, self._lengths, self._keys, self._by_length, self._by_hash)
        return sum(map(sys.getsizeof, arrays))

    def recorded(self, digest: bytes, least: int, most: int, rng: Random) -> int | None:
        """Key of a random row with this hash, or None without any.

        Prefers rows with `least` to `most` tokens, then longer ones, then shorter ones.
        """
        prefix, prefix_of = _prefix(digest), self._prefixes.__getitem__
        first = bisect_left(self._by_hash, prefix, key=prefix_of)
        end = bisect_right(self._by_hash, prefix, first, key=prefix_of)
        start, stop = self._fitting(self._by_hash, least, most, first, end)
        ranges = ((start, stop), (stop, end), (first, start))
        chosen = next((each for each in ranges if each[0] < each[1]), None)
        return None if chosen is None else self._keys[self._by_hash[rng.randrange(*chosen)]]

    def any(self, least: int, most: int, rng: Random) -> int:
        """Key of a random row with `least` to `most` tokens, else of any row. ValueError without rows."""
        start, stop = self._fitting(self._by_length, least, most, 0, len(self))
        position = rng.randrange(start, stop) if start < stop else rng.randrange(len(self))
        return self._keys[self._by_length[position]]

    def _fitting(self, order: array[int], least: int, most: int, first: int, end: int) -> tuple[int, int]:
        """Range of positions in `order[first:end]` of the rows with `least` to `most` tokens."""
        length_of = self._lengths.__getitem__
        start = bisect_left(order, least, first, end, key=length_of)
        return start, bisect_right(order, most, start, end, key=length_of)


def _prefix(digest: bytes) -> int:
    return int.from_bytes(digest[:PREFIX_BYTES], "big")
