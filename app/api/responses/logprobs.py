"""Log probabilities in the two shapes of the Responses family: in items, and in events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.engine.outputs import TokenLogprob


def item_entries(entries: Sequence[TokenLogprob], top: int) -> list[dict[str, Any]]:
    """The `logprobs` of a message; `top` alternatives each, the token itself first, -1 for all."""
    return [
        {
            **_with_bytes(entry.token, entry.logprob),
            "top_logprobs": [_with_bytes(text, logprob) for _, text, logprob in _alternatives(entry, top)],
        }
        for entry in entries
    ]


def event_entries(entries: Sequence[TokenLogprob], top: int) -> list[dict[str, Any]]:
    """The `logprobs` of an event: the same without bytes."""
    return [
        {
            "token": entry.token,
            "logprob": entry.logprob,
            "top_logprobs": [
                {"token": text, "logprob": logprob} for _, text, logprob in _alternatives(entry, top)
            ],
        }
        for entry in entries
    ]


def _alternatives(entry: TokenLogprob, top: int) -> Sequence[tuple[int, str, float]]:
    return entry.top if top == -1 else entry.top[:top]


def _with_bytes(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": logprob}
