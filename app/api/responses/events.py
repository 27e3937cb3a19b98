"""The output items of a response, and the server-sent events, numbered from 0, that tell of them.

Items are messages, thoughts and function calls. Tokens of one part make one item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Raw, Struct

from app.api.logprobs import Entries, ItemLogprobs
from app.api.pieces import HOLE, template
from app.api.writer import Segment
from app.engine.outputs import TokenLogprob, Tokens
from app.protocol import response_object as wire
from app.protocol.common import encode
from app.protocol.logprobs import ItemLogprob
from app.protocol.response_object import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
)
from app.protocol.response_tools import CalledTool, custom_input

Logprobs = Sequence[ItemLogprob] | Raw | None
ID_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


Calls = Mapping[str, CalledTool]
"""What the answer calls functions whose names the model knows differently."""


def item_of(
    segment: Segment,
    status: str | None,
    text: str | Raw | None,
    logprobs: Logprobs = None,
    calls: Calls = MappingProxyType({}),
) -> OutputItem:
    """The item with `text` in it; None when nothing is in it."""
    own_id = ID_PREFIXES[segment.kind] + segment.id
    if segment.part is None:
        content = () if text is None else (OutputText(text=text, logprobs=logprobs),)
        return MessageItem(id=own_id, content=content, status=status)
    if segment.kind == "reasoning":
        thought = None if text is None else (ReasoningText(text=text),)
        return ReasoningItem(id=own_id, content=thought, status=status)
    called = calls.get(segment.part.name, CalledTool(segment.part.name))
    call_id = segment.part.id or f"chatcmpl-tool-{segment.id}"
    if called.is_custom:
        payload = "" if text is None else Raw(encode(custom_input(segment.text)))
        return CustomCallItem(call_id=call_id, payload=payload, name=called.name, id="ctc_" + segment.id)
    return FunctionCallItem(
        arguments="" if text is None else text,
        call_id=call_id,
        name=called.name,
        id=own_id,
        namespace=called.namespace,
        status=status,
    )


class EventWriter:
    """Writes the events of one response, in order. `top_logprobs`: alternatives of each token; None for none.

    Everything is rendered when it comes, so that the end has only to be put together.
    """

    __slots__ = (
        "_begin",
        "_calls",
        "_end",
        "_entries",
        "_index",
        "_is_custom",
        "_item_id",
        "_logprobs",
        "_middle",
        "_number",
        "_plain_middle",
        "_segment",
        "_silent",
        "items",
    )

    def __init__(self, logprobs: ItemLogprobs | None, calls: Calls) -> None:
        self._calls = calls
        self._logprobs = logprobs
        self._number = 0
        self._index = -1
        self._item_id, self._is_custom = "", False
        self._segment: Segment | None = None
        self._silent: list[TokenLogprob] = []
        """Log probabilities of tokens that show nothing, until one comes that does."""
        self._entries: list[bytes] = []
        """Log probabilities of the item, as the response has them in the end."""
        self._begin = self._plain_middle = self._end = b""
        self._middle: tuple[bytes, bytes] = (b"", b"")
        """What surrounds text, log probabilities and number in the event of a piece of text."""
        self.items: list[Raw] = []
        """The items that are over, as the response has them in the end."""

    def of_response(self, kind: str, response: ResponseObject) -> bytes:
        """The event `response.<kind>` of the whole response."""
        name = f"response.{kind}"
        return _event(name, wire.ResponseEvent(response=response, sequence_number=self._next(), type=name))

    def tokens(self, segment: Segment, output: Tokens) -> Iterator[bytes]:
        """The events of tokens that went to `segment`, and of its beginning if it is another one."""
        if segment is not self._segment:
            yield from self.closing()
            yield from self._opening(segment)
        if self._logprobs is not None and segment.part is None and output.logprobs is not None:
            yield from self._with_logprobs(self._logprobs, output.texts, output.logprobs)
            return
        for text in output.texts if not self._is_custom else ():
            if text:
                yield self.delta(text)

    def delta(self, text: str) -> bytes:
        """The event of one more piece of the current item."""
        number = self._number
        self._number = number + 1
        return b"%b%b%b%d%b" % (self._begin, encode(text), self._plain_middle, number, self._end)

    def closing(self) -> Iterator[bytes]:
        """The events at the end of the current item, if there is one."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        if self._logprobs is not None and self._silent:
            yield self._delta_with(self._logprobs, "", ())
        text = Raw(encode(segment.text))
        logprobs = Raw(b"[%b]" % b",".join(self._entries)) if self._entries else None
        self._entries = []
        if self._is_custom:
            yield from self._custom_input(segment)
        else:
            yield self._done(segment, text)
        if segment.kind != "call":
            yield self._part("content_part.done", segment, text, logprobs)
        said = text if segment.part is not None or any(segment.texts) else None
        item = item_of(segment, "completed", said, logprobs, self._calls)
        yield self._item("output_item.done", item)
        self.items.append(Raw(encode(item)))

    def _opening(self, segment: Segment) -> Iterator[bytes]:
        self._segment = segment
        self._index += 1
        item = item_of(segment, "in_progress", None, calls=self._calls)
        self._item_id, self._is_custom = item.id, isinstance(item, CustomCallItem)
        self._prepare(segment)
        yield self._item("output_item.added", item)
        if segment.kind != "call":
            yield self._part("content_part.added", segment, "", ())

    def _prepare(self, segment: Segment) -> None:
        """Render what surrounds the variable parts of its events of text."""
        delta = self._empty_delta(segment)
        begin, *middle, end = template(delta)
        before, after = middle if len(middle) == 2 else (middle[0], b"")
        self._middle = before, after
        self._plain_middle = before + b"[]" + after if len(middle) == 2 else before
        self._begin = b"event: %b\ndata: %b" % (delta.type.encode(), begin)
        self._end = end + b"\n\n"

    def _empty_delta(self, segment: Segment) -> wire.Delta:
        """With holes for its text, its number and, of a message, its log probabilities."""
        own_id, index = self._item_id, self._index
        if segment.part is None:
            return wire.TextDelta(
                delta=HOLE, item_id=own_id, logprobs=HOLE, output_index=index, sequence_number=HOLE
            )
        kind = wire.ReasoningDelta if segment.kind == "reasoning" else wire.ArgumentsDelta
        return kind(delta=HOLE, item_id=own_id, output_index=index, sequence_number=HOLE)

    def _done(self, segment: Segment, text: Raw) -> bytes:
        own_id, index, number = self._item_id, self._index, self._next()
        done: wire.Done
        if segment.part is None:
            done = wire.TextDone(item_id=own_id, output_index=index, sequence_number=number, text=text)
        elif segment.kind == "reasoning":
            done = wire.ReasoningDone(item_id=own_id, output_index=index, sequence_number=number, text=text)
        else:
            done = wire.ArgumentsDone(
                arguments=text,
                item_id=own_id,
                name=self._calls.get(segment.part.name, segment.part).name,
                output_index=index,
                sequence_number=number,
            )
        return _event(done.type, done)

    def _custom_input(self, segment: Segment) -> Iterator[bytes]:
        """The events of what a custom tool is given, at once: its text is found in JSON that is over."""
        payload, own_id, index = custom_input(segment.text), self._item_id, self._index
        if payload:
            delta = wire.InputDelta(
                delta=payload, item_id=own_id, output_index=index, sequence_number=self._next()
            )
            yield _event(delta.type, delta)
        done = wire.InputDone(
            payload=payload, item_id=own_id, output_index=index, sequence_number=self._next()
        )
        yield _event(done.type, done)

    def _part(self, kind: str, segment: Segment, text: str | Raw, logprobs: Logprobs) -> bytes:
        name = f"response.{kind}"
        is_text = segment.part is None
        event = wire.PartEvent(
            item_id=self._item_id,
            output_index=self._index,
            part=OutputText(text=text, logprobs=logprobs) if is_text else ReasoningText(text=text),
            sequence_number=self._next(),
            type=name,
        )
        return _event(name, event)

    def _item(self, kind: str, item: OutputItem) -> bytes:
        name = f"response.{kind}"
        number = self._next()
        event = wire.ItemEvent(item=item, output_index=self._index, sequence_number=number, type=name)
        return _event(name, event)

    def _next(self) -> int:
        number = self._number
        self._number = number + 1
        return number

    def _with_logprobs(
        self, logprobs: ItemLogprobs, texts: Sequence[str], entries: Entries
    ) -> Iterator[bytes]:
        for text, entry in zip(texts, entries, strict=True):
            self._entries.append(encode(logprobs.entries((entry,)))[1:-1])
            if text:
                yield self._delta_with(logprobs, text, (entry,))
            else:
                self._silent.append(entry)

    def _delta_with(self, logprobs: ItemLogprobs, text: str, entries: Entries) -> bytes:
        """The event of a text, with `entries` and those that were held back."""
        shown, self._silent = [*self._silent, *entries], []
        before, after = self._middle
        middle = b"%b%b%b" % (before, encode(logprobs.event_entries(shown)), after)
        return b"%b%b%b%d%b" % (self._begin, encode(text), middle, self._next(), self._end)


def _event(name: str, event: Struct) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(event))
