"""Requests as the tests of fault rules make them."""

from __future__ import annotations

from app.serving.faults.fault import RequestFacts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def asking(
    path: str = CHAT, model: str | None = "m", client: str = "me", tokens: float = 0.0, **headers: str
) -> RequestFacts:
    """A request; `X_Fault=...` is its header X-Fault."""
    known = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return RequestFacts(path, model, lambda name: known.get(name.lower()), lambda: client, tokens)
