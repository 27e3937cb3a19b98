"""What a chat request asked to see in its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.api.response_meta import AnswerShape


def no_ids() -> str:
    """For answers without tool calls."""
    return ""


class ChatShape(AnswerShape, frozen=True, kw_only=True):
    """The shape of one chat answer."""

    prompt_ids: Sequence[int]
    role: str = "assistant"
    echo: str = ""
    top_logprobs: int | None = None
    """Alternatives shown; None without log probabilities."""
    prompt_text: str | None = None
    named_tool: bool = False
    """A named tool had to be called: the reply then ends with `stop`."""
    forced_tool: bool = False
    """A tool had to be called: beside its calls, the reply's text is empty instead of null."""
    new_call_id: Callable[[], str] = no_ids
    """Draws the id of a tool call."""
    parsed: Callable[[bool, bool, int], None] | None = None
    """Told of the work of the parser of tool calls, if there is any: in a stream?, found one?, how often."""
    reasons: bool = False
    """The model thinks, so usage counts its thoughts."""
    show_reasoning: bool = True
    """`include_reasoning`; hidden thoughts also hide tokens and log probabilities."""
    blocks: bool = False
    """The reply has an image, so its text comes as content blocks, too."""
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params` of the answer."""
    encoded_media: Mapping[str, Any] | None = None
    """`ec_transfer_params` of the answer."""
    media_tokens: Mapping[str, int] | None = None
    """Prompt tokens of each modality."""


def text_block(text: str) -> dict[str, Any]:
    """Text as a content block."""
    return {"type": "text", "text": text}


def image_block(url: str) -> dict[str, Any]:
    """An image as a content block."""
    return {"type": "image_url", "image_url": {"url": url}}
