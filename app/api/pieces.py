"""Large answers, written in pieces: none is large, and none takes long to make.

Long values are left out of a struct at first: a hole is written in their place, and filled afterwards,
a slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from msgspec import Raw, Struct

from app.http.errors import bad_request
from app.protocol.encoding import encode

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

MAX_ANSWER_BYTES = 256 << 20
ENTRY_BYTES = 128
"""What a token, or a log probability of it, takes at most while a whole answer is gathered.

A token: its text (about 55 bytes), its id (28), a place in two lists (16). A log probability, as the engine
makes it: a tuple (64), a float (24), a place in a list (8), its share of its token's struct and list (16).
"""
MAX_ENTRIES = MAX_ANSWER_BYTES // ENTRY_BYTES
"""n x tokens x (1 + log probabilities of each) in one whole answer: 2,097,152."""


def check_answer_size(n: int, max_tokens: int, logprobs: int | None) -> None:
    """ApiError 400 when `n` choices of `max_tokens` tokens are too much to be gathered for a whole answer.

    `logprobs` counts the alternatives of each token, "all" spelled out; None when there are none.
    """
    entries = n * max_tokens * (1 + (logprobs or 0))
    if entries > MAX_ENTRIES:
        raise bad_request(
            f"n={n} choices of up to {max_tokens} tokens with {logprobs or 0} log probabilities each make "
            f"{entries} entries; a whole answer has at most {MAX_ENTRIES}. Ask for less, or for a stream."
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


def template(value: Struct) -> list[bytes]:
    """The JSON of `value`, cut where it has holes."""
    return encode(value).split(GAP)
