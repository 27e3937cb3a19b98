"""How much of an answer is written at once, and what one answer may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Raw, Struct

from app.clock.pause import Slices
from app.http.errors import bad_request
from app.protocol.common import encode

Item = TypeVar("Item")

GAP = b"\0"
"""What a hole is written as. No JSON holds it: in texts it is escaped."""
HOLE = Raw(GAP)
SLICE = 2048
"""Tokens, or log probabilities, that are written at once: well below 5 ms of work."""
BLOCK_BYTES = 1 << 15
"""Pieces are joined up to here."""

MAX_ANSWER_BYTES = 256 << 20
"""Memory that one whole answer may take in the process."""
TOKEN_BYTES = 48
"""Memory of a token until its answer is written: its text and its id, here and in the engine.

Measured at the process: 36 bytes, of 128 choices of 4,000 tokens.
"""
ENTRY_BYTES = 160
"""Memory of a log probability in an answer: about 75 bytes of JSON, in a part and in the whole."""


def check_answer_size(tokens: int, entries: int) -> None:
    """Raises ApiError 400 when so many tokens and log probabilities are too many for one whole answer.

    Possible are 5,592,405 tokens, or 1,677,721 log probabilities, alternatives and those of prompts included.
    A stream has no such limit: nothing of it is kept.
    """
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"An answer of up to {tokens} tokens and {entries} log probabilities would take "
            f"{size >> 20} MiB, more than {MAX_ANSWER_BYTES >> 20}. Ask for less, or for a stream."
        )


def slices(items: Sequence[Item], size: int = SLICE) -> Iterator[Sequence[Item]]:
    """Yields `items`, at most `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def joined(lists: Iterable[bytes]) -> Raw:
    """Returns one JSON list of the items of several; other requests have turns while it is long."""
    turns = Slices(BLOCK_BYTES)
    items: list[bytes] = []
    for some in lists:
        if some != b"[]":
            items.append(some[1:-1])
        turns.spend(len(some))
    return Raw(b"[%b]" % b",".join(items))


def blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in pieces that are worth sending."""
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def template(value: Struct) -> list[bytes]:
    """Returns the JSON of `value`, cut where it has holes."""
    return encode(value).split(GAP)
