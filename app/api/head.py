"""What every answer of one request begins with, and how tokens are counted in it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Head(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


def usage(prompt_tokens: int, completion_tokens: int, **details: Any) -> dict[str, Any]:
    """vLLM's usage object, its keys in vLLM's order; `details` are the fields that were set besides."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        **details,
    }
