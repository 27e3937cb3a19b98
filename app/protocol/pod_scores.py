"""The bodies of ``POST /score_completions``, ``/score_chat_completions`` and ``/score_tokens``.

Names are those of llm-d's kv-cache manager (kv-cache.md section 5.1); `pods`, `lora` and `cache_salt` are
ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from app.protocol.request import Request
from app.protocol.tokenize import TokenizeChatRequest

TOKEN_MAX = 2**32 - 1


class ScoreTextRequest(Request, kw_only=True):
    """Score the pods for a plain prompt."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None


class ScoreChatRequest(TokenizeChatRequest, kw_only=True):
    """Score the pods for a conversation. A generation prompt is added unless told otherwise, as vLLM does."""

    documents: list[Mapping[str, Any]] | None = None
    return_assistant_tokens_mask: bool | None = False
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None


class MediaSpan(Struct, frozen=True):
    """An image or the like: its hash, and the tokens of the prompt that stand for it."""

    identifier: str
    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=1)]


class ScoreTokensRequest(Request, kw_only=True):
    """Score the pods for a prompt of token ids."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=TOKEN_MAX)]]
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    media: list[MediaSpan] | None = None
