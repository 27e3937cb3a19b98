"""Log probabilities (natural logarithms) in the shapes in which vLLM's families write them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct


class ChatAlternative(Struct, gc=False):
    """One of `top_logprobs`; `bytes` is a list of numbers, the UTF-8 of `token`."""

    token: str
    logprob: float
    bytes: Raw


class ChatLogprob(Struct):
    """One token of a chat's reply."""

    token: str
    logprob: float
    bytes: Raw
    top_logprobs: Sequence[ChatAlternative]


class ItemAlternative(Struct, gc=False):
    """As `ChatAlternative`, in the order of the Responses family."""

    token: str
    bytes: Raw
    logprob: float


class ItemLogprob(Struct):
    """One token of a message of the Responses family."""

    token: str
    bytes: Raw
    logprob: float
    top_logprobs: Sequence[ItemAlternative]


class EventAlternative(Struct, gc=False):
    """One of `top_logprobs` in an event of the Responses family."""

    token: str
    logprob: float


class EventLogprob(Struct):
    """One token in an event of the Responses family: no bytes."""

    token: str
    logprob: float
    top_logprobs: Sequence[EventAlternative]


class TokenCandidate(Struct, gc=False):
    """One of `top_logprobs` where tokens are only ids; `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int


class TokenIdLogprob(Struct):
    """One token where tokens are only ids."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: Sequence[TokenCandidate]


class LogprobContent(Struct):
    """`logprobs` of a choice of chat or generate: one entry per token."""

    content: Sequence[ChatLogprob | TokenIdLogprob] | Raw


class CompletionLogprobs(Struct):
    """`logprobs` of a choice of a text completion: parallel lists, one place per token.

    `text_offset` counts characters from the begin of the text. What is not known of a token, as of a
    prompt's first one, is null.
    """

    text_offset: Sequence[int] | Raw
    token_logprobs: Sequence[float | None] | Raw
    tokens: Sequence[str] | Raw
    top_logprobs: Sequence[dict[str, float] | None] | Raw


class PromptLogprob(Struct, gc=False):
    """One candidate for a place of the prompt; they are listed by token id."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = Sequence[dict[str, PromptLogprob] | None]
"""Candidates for each token of a prompt by their ids; None where nothing is known, as for the first."""
