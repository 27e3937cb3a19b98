"""The server-sent events of a response, numbered from 0; the keys of each are in vLLM's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from app.api.responses.items import CALL, REASONING, TEXT, Item
from app.api.responses.logprobs import event_entries
from app.engine.outputs import TokenLogprob, Tokens

dumps = msgspec.json.Encoder().encode


class EventWriter:
    """Writes the events of one response, in order. `top_logprobs`: alternatives to tell of each token."""

    __slots__ = ("_head", "_id", "_index", "_item", "_number", "_place", "_plain", "_tail", "_top", "_untold")

    def __init__(self, top_logprobs: int | None) -> None:
        self._top = top_logprobs
        self._number = 0
        self._index = -1
        self._item: Item | None = None
        self._untold: list[TokenLogprob] = []
        """Log probabilities of tokens that show nothing, until one comes that does."""
        self._head = self._id = self._plain = self._place = self._tail = b""
        """Pieces of the event of a text; without log probabilities, `_plain` is all of its middle."""

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event `response.<kind>`. Keys are in alphabetical order, as they happen to be in vLLM."""
        name = f"response.{kind}"
        told = sorted({**fields, "sequence_number": self._number, "type": name}.items())
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(dict(told)))

    def tokens(self, item: Item, event: Tokens) -> Iterator[bytes]:
        """The events of tokens that went to `item`, and of its beginning if it is another one."""
        if item is not self._item:
            yield from self.closing()
            yield from self._opening(item)
        if self._top is not None and item.part is None and event.logprobs is not None:
            yield from self._with_logprobs(event.texts, event.logprobs, self._top)
            return
        for text in event.texts:
            if text:
                yield self.delta(text)

    def delta(self, text: str, logprobs: bytes | None = None) -> bytes:
        """The event of one more piece of the current item; `logprobs`, rendered, of a message only."""
        middle = self._plain
        if logprobs is not None:
            middle = b'%b,"logprobs":%b%b' % (self._id, logprobs, self._place)
        number = self._number
        self._number += 1
        return b"%b%b%b%d%b" % (self._head, dumps(text), middle, number, self._tail)

    def closing(self) -> Iterator[bytes]:
        """The events at the end of the current item, if there is one."""
        item, self._item = self._item, None
        if item is None:
            return
        if self._untold:
            yield self.delta("", self._entries(()))
        place = {"item_id": item.id, "output_index": self._index}
        text = item.text
        if item.kind == TEXT:
            part = item.content(text)
            yield self.event("output_text.done", **place, content_index=0, text=text, logprobs=[])
            yield self.event("content_part.done", **place, content_index=0, part=part)
        elif item.kind == REASONING:
            yield self.event("reasoning_text.done", **place, content_index=0, text=text)
            yield self.event("reasoning_part.done", **place, content_index=0, part=item.content(text))
        elif item.kind == CALL and item.part is not None:
            name = item.part.name
            yield self.event("function_call_arguments.done", **place, arguments=text, name=name)
        yield self.event("output_item.done", item=item.whole("completed"), output_index=self._index)

    def empty(self, item: Item) -> Iterator[bytes]:
        """The events of a message without a content."""
        self._index += 1
        yield self.event("output_item.added", item=item.opening(), output_index=self._index)
        yield self.event("output_item.done", item=item.whole("completed"), output_index=self._index)

    def _opening(self, item: Item) -> Iterator[bytes]:
        self._item = item
        self._index += 1
        self._head, self._tail = DELTAS[item.kind]
        self._id = b',"item_id":"%b"' % item.id.encode()
        self._place = b',"output_index":%d,"sequence_number":' % self._index
        self._plain = self._id + (b',"logprobs":[]' if item.kind == TEXT else b"") + self._place
        yield self.event("output_item.added", item=item.opening(), output_index=self._index)
        if item.kind != CALL:
            part = item.content("") if item.kind == REASONING else {**item.content(""), "logprobs": []}
            kind = "reasoning_part.added" if item.kind == REASONING else "content_part.added"
            yield self.event(kind, content_index=0, item_id=item.id, output_index=self._index, part=part)

    def _with_logprobs(
        self, texts: Sequence[str], entries: Sequence[TokenLogprob], top: int
    ) -> Iterator[bytes]:
        for text, entry in zip(texts, entries, strict=True):
            if text:
                yield self.delta(text, self._entries((entry,)))
            else:
                self._untold.append(entry)

    def _entries(self, entries: Sequence[TokenLogprob]) -> bytes:
        """What was not told yet, and `entries`."""
        told, self._untold = [*self._untold, *entries], []
        return dumps(event_entries(told, self._top or 0))


def _delta_frame(kind: str, first: bytes) -> tuple[bytes, bytes]:
    """What surrounds the variable part of the event of a piece of text."""
    name = f"response.{kind}.delta".encode()
    return b'event: %b\ndata: {%b"delta":' % (name, first), b',"type":"%b"}\n\n' % name


DELTAS = {
    TEXT: _delta_frame("output_text", b'"content_index":0,'),
    REASONING: _delta_frame("reasoning_text", b'"content_index":0,'),
    CALL: _delta_frame("function_call_arguments", b""),
}
