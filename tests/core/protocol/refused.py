"""Requests as a client sends them, and what a refusal tells it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.decoding import decode
from app.core.server.http.errors import ApiError

JSON = "application/json"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return decode(json.dumps({"messages": HELLO, **fields}).encode(), JSON, ChatCompletionRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"prompt": "hi", **fields}).encode(), JSON, CompletionRequest)


def refused(
    action: Callable[..., Any], *arguments: Any, **fields: Any
) -> tuple[int, str, str | None]:
    """Status, type and field of the error that a call of `action` must end with."""
    with pytest.raises(ApiError) as caught:
        action(*arguments, **fields)
    return caught.value.status, caught.value.type, caught.value.param
