"""What every answer of one request begins with, and what its request asked to see in it."""

from __future__ import annotations

from msgspec import Struct


class ResponseMeta(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


class ResponseOptions(Struct, frozen=True, kw_only=True):
    """What a request asked to see in its answer, whatever its API family."""

    n: int
    include_usage: bool = False
    """A stream ends with its usage."""
    continuous_usage: bool = False
    """Every chunk carries the usage so far."""
    token_ids: bool = False
    """`return_token_ids`"""
    token_id_names: bool = False
    """`return_tokens_as_token_ids`: log probabilities call tokens `token_id:N`."""
    prompt_details: bool = False
    """`enable-prompt-tokens-details` of the server"""
