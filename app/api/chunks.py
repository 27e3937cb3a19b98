"""The events of a chat's or a completion's stream, whose constant parts are rendered once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct

from app.api.identity import ResponseMeta
from app.api.pieces import HOLE, template
from app.protocol.chat_response import ChunkChoice, Delta
from app.protocol.common import NO_TAIL, ChunkHead, ChunkTail, encode


class PlainChoice:
    """The choice of a chunk of which nothing special was asked: constant but for its number and its text."""

    __slots__ = ("_before_index", "_before_text", "end")

    def __init__(self, choice: Struct) -> None:
        """`choice` has holes for both."""
        self._before_index, self._before_text, end = template(choice)
        self.end = end + b"]}\n\n"
        """What follows the text in the event."""

    def begins(self, head: bytes, choices: int) -> list[bytes]:
        """The event of each choice up to its text."""
        first = head + self._before_index
        return [b"%b%d%b" % (first, index, self._before_text) for index in range(choices)]

    def events(self, begin: bytes, texts: Sequence[str]) -> bytes:
        """The events of one choice with these texts."""
        return begin + (self.end + begin).join(map(encode, texts)) + self.end if texts else b""


def chunk_head(meta: ResponseMeta, kind: str) -> bytes:
    """The event of a chunk up to its first choice; `kind` is its `object`."""
    head = encode(ChunkHead(meta.id, kind, meta.created, meta.model))
    return b'data: %b,"choices":[' % head[:-1]


def chunk_event(head: bytes, choice: Struct | Raw, tail: ChunkTail = NO_TAIL) -> bytes:
    """The event of one choice."""
    return b"%b%b%b" % (head, encode(choice), _end(tail))


def chunk_events(head: bytes, delta: Delta, choices: int, tail: ChunkTail) -> Iterable[bytes]:
    """The same event of each choice of a chat."""
    if choices == 1:
        return (chunk_event(head, ChunkChoice(0, delta), tail),)
    before, after = template(ChunkChoice(HOLE, delta))
    before, after = head + before, after + _end(tail)
    return (b"%b%d%b" % (before, index, after) for index in range(choices))


def last_event(head: bytes, tail: ChunkTail) -> bytes:
    """The event without a choice."""
    return head + _end(tail)


def _end(tail: ChunkTail) -> bytes:
    if tail is NO_TAIL or (rest := encode(tail)) == b"{}":
        return b"]}\n\n"
    return b"],%b\n\n" % rest[1:]
