"""What every answer of one request begins with, and how tokens are counted in it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from app.http.sse import event_of


class Head(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str

    def fields(self, kind: str) -> dict[str, Any]:
        """What every object of the answer begins with; `kind` is its `object`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def opening(self, kind: str) -> bytes:
        """The event of a chunk, up to the index of its choice."""
        return b"data: " + msgspec.json.encode(self.fields(kind))[:-1] + b',"choices":[{"index":'

    def usage_event(self, kind: str, counted: dict[str, Any]) -> bytes:
        """The chunk without choices that tells the usage of a stream."""
        return event_of(
            {
                **self.fields(kind),
                "choices": [],
                "usage": counted,
                "system_fingerprint": self.fingerprint,
            }
        )


class AnswerShape(Struct, frozen=True, kw_only=True):
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


def usage(prompt_tokens: int, completion_tokens: int, **details: Any) -> dict[str, Any]:
    """vLLM's usage object, its keys in vLLM's order; `details` are the fields that were set besides."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        **details,
    }
