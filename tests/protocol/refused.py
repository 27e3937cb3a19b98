"""Requests as a client sends them, and what a refusal tells it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.serving.http.errors import ApiError
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.decoding import decode

JSON = "application/json"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return decode(json.dumps({"messages": HELLO, **fields}).encode(), JSON, ChatCompletionRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps({"prompt": "hi", **fields}).encode(), JSON, CompletionRequest)


def refused(action: Callable[[], Any]) -> tuple[int, str, str | None]:
    """Status, type and field of the error that an action must end with."""
    with pytest.raises(ApiError) as caught:
        action()
    return caught.value.status, caught.value.type, caught.value.param
