"""A bound in bytes for the index in memory."""

from __future__ import annotations

from sys import getsizeof

from app.kvindex.backend import Copies
from app.kvindex.copies import count_copies

BLOCK_BYTES = 240
"""What a block takes in the table: its key, its place in the dictionary and in the order of use."""
COPY_BYTES = 180
"""What a holder's map takes for a block: two keys and their place in the dictionary."""


def weigh_bytes(copies: Copies) -> int:
    """The bytes of a block, at most: blocks of one prompt share their masks, which is not counted."""
    if not copies:
        return 0
    masks = getsizeof(copies) + sum(map(getsizeof, copies))
    return BLOCK_BYTES + masks + COPY_BYTES * count_copies(copies)
