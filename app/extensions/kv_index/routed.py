"""Requests for scores of pods, which may name the pod that has received the prompt."""

from typing import Annotated

from msgspec import Meta, Struct

from app.core.protocol.coercion import JsonObject
from app.core.protocol.decoding import Request
from app.core.protocol.tokenize import TokenizeChatRequest

Rank = Annotated[int, Meta(ge=0, le=65_535)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class RoutedTextRequest(Request, kw_only=True):
    """The body of ``POST /score_completions``."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data-parallel rank of this pod."""


class RoutedChatRequest(TokenizeChatRequest, kw_only=True):
    """The body of ``POST /score_chat_completions``.

    A generation prompt is added by default, as in vLLM.
    """

    documents: list[JsonObject] | None = None
    return_assistant_tokens_mask: bool | None = False
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data-parallel rank of this pod."""


class MediaSpan(Struct, frozen=True):
    """The placeholder tokens of a media item in a prompt."""

    identifier: str
    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=1)]


class RoutedTokensRequest(Request, kw_only=True):
    """The body of ``POST /score_tokens``."""

    model: str | None = None
    tokens: list[TokenId]
    pods: list[str] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    media: list[MediaSpan] | None = None
    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data-parallel rank of this pod."""


RoutedRequest = RoutedTextRequest | RoutedChatRequest | RoutedTokensRequest
