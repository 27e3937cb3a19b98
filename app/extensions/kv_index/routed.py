"""Requests for scores, which may name the pod that has received the prompt."""

from typing import Annotated

from msgspec import Meta

from app.core.protocol.tokenize import ScoreChatRequest, ScoreTextRequest, ScoreTokensRequest

Rank = Annotated[int, Meta(ge=0, le=65_535)]


class RoutedTextRequest(ScoreTextRequest, kw_only=True):
    """The body of ``POST /score_completions``."""

    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data parallel rank of this pod."""


class RoutedChatRequest(ScoreChatRequest, kw_only=True):
    """The body of ``POST /score_chat_completions``."""

    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data parallel rank of this pod."""


class RoutedTokensRequest(ScoreTokensRequest, kw_only=True):
    """The body of ``POST /score_tokens``."""

    routed_to: str | None = None
    """Pod that has just received the prompt."""
    routed_rank: Rank = 0
    """Data parallel rank of this pod."""


RoutedRequest = RoutedTextRequest | RoutedChatRequest | RoutedTokensRequest
