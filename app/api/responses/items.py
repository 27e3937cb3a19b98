"""The output items of a response: messages, thoughts, function calls. Tokens of one part make one item."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from app.api.choice import Segment
from app.protocol.logprobs import ItemLogprob
from app.protocol.response_object import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

Logprobs = Sequence[ItemLogprob] | Raw | None
ID_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


def item_id(segment: Segment) -> str:
    """The id of the item that `segment` is."""
    return ID_PREFIXES[segment.kind] + segment.id


def item_of(
    segment: Segment, status: str | None, text: str | Raw | None, logprobs: Logprobs = None
) -> OutputItem:
    """The item with `text` in it; None when nothing is in it."""
    own_id = item_id(segment)
    if segment.part is None:
        content = () if text is None else (OutputText(text=text, logprobs=logprobs),)
        return MessageItem(id=own_id, content=content, status=status)
    if segment.kind == "reasoning":
        thought = None if text is None else (ReasoningText(text=text),)
        return ReasoningItem(id=own_id, content=thought, status=status)
    return FunctionCallItem(
        arguments="" if text is None else text,
        call_id=f"call_{segment.id}",
        name=segment.part.name,
        id=own_id,
        status=status,
    )


def last_item(segment: Segment, text: str | Raw | None, logprobs: Logprobs = None) -> OutputItem:
    """The item as a response has it in the end, where thoughts have no status."""
    return item_of(segment, None if segment.kind == "reasoning" else "completed", text, logprobs)
