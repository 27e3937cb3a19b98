"""The rows of a dataset in memory: finds one by the hash of a prompt and by length."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256
from random import Random
from typing import TypeAlias

Turn: TypeAlias = tuple[str, str]
"""Role and text of a message; a text prompt is one turn of the user."""

ROLES = frozenset({"user", "assistant"})
PREFIX_BYTES = 8
"""Stored bytes of a hash; enough to distinguish millions of prompts."""


class Catalogue:
    """All rows with at least one token, in two orders: by length, and by hash and then length.

    `rows` are (`prompt_hash`, `n_gen_tokens`, key) as read from SQLite. A row without a positive
    length is left out; a value that is not a hash matches no prompt.
    """

    def __init__(self, rows: Iterable[tuple[object, object, int]]) -> None:
        self._prefixes = array("Q")
        self._lengths = array("q")
        self._keys = array("q")
        for digest, length, key in rows:
            if isinstance(length, int) and length > 0:
                self._prefixes.append(_prefix(digest) if isinstance(digest, bytes) else 0)
                self._lengths.append(length)
                self._keys.append(key)
        self._by_length = array("I", sorted(range(len(self._keys)), key=self._lengths.__getitem__))
        # Sorting is stable: rows of the same hash stay in the order of their length.
        self._by_hash = array("I", sorted(self._by_length, key=self._prefixes.__getitem__))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        """Memory of the rows."""
        arrays = (self._prefixes, self._lengths, self._keys, self._by_length, self._by_hash)
        return sum(map(sys.getsizeof, arrays))

    def find_recorded(
        self, digest: bytes, min_tokens: int, max_tokens: int, rng: Random
    ) -> int | None:
        """Returns the key of a random row with this hash, or None without any.

        Rows with `min_tokens` to `max_tokens` tokens are preferred, then longer ones, then shorter
        ones.
        """
        prefix = _prefix(digest)
        first = bisect_left(self._by_hash, prefix, key=self._prefixes.__getitem__)
        end = bisect_right(self._by_hash, prefix, first, key=self._prefixes.__getitem__)
        fitting = self._fitting(self._by_hash, range(first, end), min_tokens, max_tokens)
        longer = range(fitting.stop, end)
        shorter = range(first, fitting.start)
        for positions in (fitting, longer, shorter):
            if positions:
                return self._keys[self._by_hash[rng.choice(positions)]]
        return None

    def find_any(self, min_tokens: int, max_tokens: int, rng: Random) -> int:
        """Returns the key of a random row with a length within the limits, else of any row.

        Raises IndexError without rows.
        """
        every = range(len(self))
        fitting = self._fitting(self._by_length, every, min_tokens, max_tokens)
        return self._keys[self._by_length[rng.choice(fitting or every)]]

    def _fitting(
        self, order: array[int], positions: range, min_tokens: int, max_tokens: int
    ) -> range:
        """Returns those of `positions` in `order` whose rows have a length within the limits."""
        length_of = self._lengths.__getitem__
        start = bisect_left(order, min_tokens, positions.start, positions.stop, key=length_of)
        stop = bisect_right(order, max_tokens, start, positions.stop, key=length_of)
        return range(start, stop)


def ids_hash(ids: Sequence[int]) -> bytes:
    """Returns the SHA-256 of the prompt's token ids, each as four bytes, the lowest first."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return sha256(packed).digest()


def text_hash(turns: Iterable[Turn]) -> bytes:
    """Returns the SHA-256 of the prompt's text with a headline per turn.

    Files of older versions have this hash.
    """
    parts = []
    for role, text in turns:
        headline = role if role in ROLES else "unknown"
        parts.append(f"### {headline}:\n{text}\n")
    return sha256("".join(parts).encode("utf-8", "surrogatepass")).digest()


def _prefix(digest: bytes) -> int:
    return int.from_bytes(digest[:PREFIX_BYTES], "big")
