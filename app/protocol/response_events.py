"""The events of a response that is streamed (vllm-api.md section 6).

Their keys are in alphabetical order, as they happen to be in vLLM. `sequence_number` counts from 0,
`output_index` counts the items. `Raw` is JSON that is written by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct

from app.protocol.logprobs import EventLogprob
from app.protocol.response_object import OutputItem, OutputText, ReasoningText, ResponseObject


class ResponseEvent(Struct, kw_only=True):
    """The whole response: `created`, `in_progress`, `completed` or `failed`."""

    response: ResponseObject
    sequence_number: int
    type: str


class ItemEvent(Struct, kw_only=True):
    """An item at its begin or its end."""

    item: OutputItem
    output_index: int
    sequence_number: int
    type: str


class PartEvent(Struct, kw_only=True):
    """The content of an item at its begin or its end."""

    content_index: int = 0
    item_id: str
    output_index: int
    part: OutputText | ReasoningText
    sequence_number: int
    type: str


class TextDelta(Struct, kw_only=True):
    """More of a message."""

    content_index: int = 0
    delta: str | Raw
    item_id: str
    logprobs: Sequence[EventLogprob] | Raw
    output_index: int
    sequence_number: int | Raw
    type: str = "response.output_text.delta"


class TextDone(Struct, kw_only=True):
    """All of a message."""

    content_index: int = 0
    item_id: str
    logprobs: tuple[()] = ()
    output_index: int
    sequence_number: int
    text: str | Raw
    type: str = "response.output_text.done"


class ReasoningDelta(Struct, kw_only=True):
    """More of a thought."""

    content_index: int = 0
    delta: str | Raw
    item_id: str
    output_index: int
    sequence_number: int | Raw
    type: str = "response.reasoning_text.delta"


class ReasoningDone(Struct, kw_only=True):
    """All of a thought."""

    content_index: int = 0
    item_id: str
    output_index: int
    sequence_number: int
    text: str | Raw
    type: str = "response.reasoning_text.done"


class ArgumentsDelta(Struct, kw_only=True):
    """More of the arguments of a function."""

    delta: str | Raw
    item_id: str
    output_index: int
    sequence_number: int | Raw
    type: str = "response.function_call_arguments.delta"


class ArgumentsDone(Struct, kw_only=True):
    """All the arguments of a function."""

    arguments: str | Raw
    item_id: str
    name: str
    output_index: int
    sequence_number: int
    type: str = "response.function_call_arguments.done"


Delta = TextDelta | ReasoningDelta | ArgumentsDelta
Done = TextDone | ReasoningDone | ArgumentsDone
