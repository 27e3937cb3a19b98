"""Large answers, written in pieces: none is large, and none takes long to make.

Long values are left out of a struct at first: a hole is written in their place, and filled afterwards,
a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from msgspec import Raw, Struct

from app.clock.pause import pause_if_possible
from app.http.errors import bad_request
from app.protocol.common import encode

S = TypeVar("S")
T = TypeVar("T", bound=Struct)
Item = TypeVar("Item")

GAP = b"\0"
"""What a hole is written as. No JSON holds it: in texts it is escaped."""
HOLE = Raw(GAP)
SLICE = 2048
"""Tokens, or log probabilities, that are written at once: well below 5 ms of work."""
BLOCK_BYTES = 1 << 15
"""Pieces are joined up to here."""

WHOLE_BYTES = 8 << 20
"""A body up to here is sent in one, and tells its length."""

MAX_ANSWER_BYTES = 256 << 20
"""What the process takes for one whole answer."""
TOKEN_BYTES = 48
"""What a token takes until its answer is written: places for its text and its id, here and in the engine.

Measured at the process: 36 bytes, of 128 choices of 4,000 tokens.
"""
LOGPROBS_BYTES = 208
"""What its log probabilities take besides, however many: a view, for they are made where they are written.

Measured in the same way: 174 bytes.
"""


def check_answer_size(n: int, max_tokens: int, logprobs: int | None) -> None:
    """ApiError 400 when `n` choices of `max_tokens` tokens take too much memory until they are written.

    `logprobs` counts the alternatives of each token; None when there are none. Possible are 5,592,405 tokens,
    or 1,048,576 with log probabilities. A stream has no such limit: nothing of it is kept.
    """
    size = n * max_tokens * (TOKEN_BYTES + (0 if logprobs is None else LOGPROBS_BYTES))
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"n={n} choices of up to {max_tokens} tokens would take {size >> 20} MiB, more than "
            f"{MAX_ANSWER_BYTES >> 20} for one answer. Ask for less, or for a stream."
        )


def slices(items: Sequence[Item], size: int = SLICE) -> Iterator[Sequence[Item]]:
    """`items`, at most `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Holes(Struct):
    """The long values of one struct, in the order of its keys. Values that are short stay where they are."""

    fillings: list[Iterable[bytes]] = []

    def text(self, texts: Sequence[str]) -> str | Raw:
        """All `texts` as one."""
        if len(texts) <= SLICE:
            return "".join(texts)
        return self.later(_text_pieces(texts))

    def numbers(self, numbers: Sequence[int]) -> Sequence[int] | Raw:
        """A list of numbers."""
        if len(numbers) <= SLICE:
            return numbers
        return self.later(list_pieces(map(encode, slices(numbers))))

    def objects(self, items: Sequence[S], make: Callable[[int, S, Holes], T]) -> Raw:
        """A list of what `make` makes of each item and its number, with holes of its own."""
        return self.later(_object_pieces(items, make))

    def later(self, filling: Iterable[bytes]) -> Raw:
        """A hole that `filling`, which is JSON, will go into."""
        self.fillings.append(filling)
        return HOLE

    def written(self, value: object) -> Iterator[bytes]:
        """The JSON of `value` with all its holes filled."""
        first, *others = encode(value).split(GAP)
        yield first
        for filling, other in zip(self.fillings, others, strict=True):
            yield from filling
            yield other


def list_pieces(lists: Iterable[bytes]) -> Iterator[bytes]:
    """One JSON list of the items of several `lists`, each JSON already; an empty one is a pause."""
    yield b"["
    comma = b""
    for items in lists:
        if not items:
            yield b""
        elif items != b"[]":
            yield comma + items[1:-1]
            comma = b","
    yield b"]"


def _object_pieces(items: Sequence[S], make: Callable[[int, S, Holes], T]) -> Iterator[bytes]:
    comma = b"["
    for index, item in enumerate(items):
        holes = Holes()
        value = make(index, item, holes)
        yield comma
        yield from holes.written(value)
        comma = b","
    yield b"]"


def _text_pieces(texts: Sequence[str]) -> Iterator[bytes]:
    inner = (encode("".join(some))[1:-1] for some in slices(texts))
    return chain((b'"',), inner, (b'"',))


def blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are worth sending; an empty one is a pause, and passed on at once."""
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        if not piece:
            yield b""
            continue
        block.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def body_of(pieces: Iterator[bytes]) -> bytes | Iterator[bytes]:
    """What to send: all in one if it is little, else the pieces. Others have their turn between them.

    Raises what the first pieces raise.
    """
    begin: list[bytes] = []
    size = 0
    for piece in pieces:
        if begin:
            pause_if_possible()
        begin.append(piece)
        size += len(piece)
        if size > WHOLE_BYTES:
            return _paced(chain(begin, pieces))
    return b"".join(begin)


def _paced(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if piece:
            yield piece
        pause_if_possible()


def template(value: Struct) -> list[bytes]:
    """The JSON of `value`, cut where it has holes."""
    return encode(value).split(GAP)
