"""A bound in bytes for the index in memory."""

from __future__ import annotations

import re
from sys import getsizeof

from app.kvindex.backend import Copies
from app.kvindex.copies import count_copies

BLOCK_BYTES = 240
"""What a block takes in the table: its key, its place in the dictionary and in the order of use."""
COPY_BYTES = 180
"""What a holder's map takes for a block: two keys and their place in the dictionary."""

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def weigh_bytes(copies: Copies) -> int:
    """The bytes of a block, at most: blocks of one prompt share their masks, which is not counted."""
    if not copies:
        return 0
    masks = getsizeof(copies) + sum(map(getsizeof, copies))
    return BLOCK_BYTES + masks + COPY_BYTES * count_copies(copies)


def parse_size(text: str) -> int:
    """The bytes of "2GiB", "42 MB", "42M", "42Mi" or "42". ValueError for anything else, and below 1."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"not a size in bytes: {text!r}; write for example 2GiB or 500MB")
    units = _BINARY if match[3] else _DECIMAL
    size = int(float(match[1]) * units[match[2].lower()])
    if size < 1:
        raise ValueError(f"a size of no bytes: {text!r}")
    return size
