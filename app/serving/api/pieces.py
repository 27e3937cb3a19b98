"""Size of answers: pieces that are written at once, and limits of one answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Raw, Struct

from app.base.clock.pause import Slices, pause_if_possible
from app.serving.http.errors import bad_request
from app.serving.protocol.common import encode

Item = TypeVar("Item")
Holes = list[Sequence[bytes]]
"""Long lists of an answer, each in pieces."""

GAP = b"\0"
"""Placeholder of a hole. JSON never contains this byte: texts escape it."""
HOLE = Raw(GAP)
SLICE = 2048
"""Tokens, or log probabilities, written at once: well below 5 ms of work."""
BLOCK_BYTES = 1 << 15
"""Bytes of a block; smaller pieces are joined."""

MAX_ANSWER_BYTES = 256 << 20
"""Most memory, in bytes, of one whole answer in the process."""
TOKEN_BYTES = 48
"""Memory of a token until its answer is written, in bytes: text and id, here and in the engine.

Measured in the process: 36 bytes, with 128 choices of 4,000 tokens.
"""
ENTRY_BYTES = 80
"""Memory of a log probability in an answer, in bytes; about 75 are JSON."""
WHOLE_BYTES = 8 << 20
"""Largest answer, in bytes, that is sent in one piece, with its length."""


def check_answer_size(n: int, tokens: int, entries: int) -> None:
    """Raises ApiError 400 when `n` choices of so many tokens and log probabilities are too large.

    The limit is 5,592,405 tokens, or 3,355,443 log probabilities, including alternatives and prompts. A
    stream has no such limit: nothing is kept.
    """
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"n={n} choices of up to {tokens} tokens and {entries} log probabilities together would take "
            f"{size >> 20} MiB, more than {MAX_ANSWER_BYTES >> 20}. Ask for less, or for a stream."
        )


def slices(items: Sequence[Item], size: int = SLICE) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def joined(lists: Iterable[bytes], holes: Holes | None = None) -> Raw:
    """Returns one JSON list of the items of several lists; pauses for other requests.

    With `holes` a long list is put there, and a hole is returned; `filled` inserts the list without a copy.
    """
    turns = Slices(BLOCK_BYTES)
    items: list[bytes] = []
    for some in lists:
        if some != b"[]":
            items.append(b"%b%b" % (b"," if items else b"[", some[1:-1]))
        turns.spend(len(some))
    items.append(b"]" if items else b"[]")
    if holes is None or sum(map(len, items)) <= BLOCK_BYTES:
        return Raw(b"".join(items))
    holes.append(items)
    return HOLE


def filled(value: object, holes: Holes) -> list[bytes]:
    """Returns the JSON of `value` in pieces; its long lists, in the order of its keys, are in `holes`."""
    if not holes:
        return [encode(value)]
    first, *others = encode(value).split(GAP)
    pieces = [first]
    for filling, other in zip(holes, others, strict=True):
        pieces += filling
        pieces.append(other)
    holes.clear()
    return pieces


def paced(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in blocks, with pauses for other requests."""
    for block in blocks(pieces):
        yield block
        pause_if_possible()


def blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in blocks that are large enough to send."""
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
