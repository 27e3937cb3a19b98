"""Requests leave no cyclic garbage behind, whatever becomes of them: the worker hardly ever collects any."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from app import create_app
from app.web.application import Understudy
from config.loader import load

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}
CHAT, LOAD = "/v1/chat/completions", "/v1/load_lora_adapter"
TIMES = 20


@pytest.fixture(scope="module")
def app() -> Understudy:
    return create_app(load(["--force-dummy-tokenizer", "--allow-runtime-lora-updating"], {}))


def leftovers(work: Callable[[], Any]) -> float:
    """Objects per call of `work` that only the collector can free."""
    work()  # what is made once does not count
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            work()
        return gc.collect() / TIMES
    finally:
        gc.enable()


def call(app: Understudy, path: str, body: Any, **headers: str) -> str:
    """The status of the answer, which is read to its end."""
    data = json.dumps(body).encode()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "test",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(data)),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(data),
        **headers,
    }
    return copy_context().run(_answered, app, environ)


def _answered(app: Understudy, environ: Any) -> str:
    """In a context of its own, as a request of a worker has one."""
    statuses: list[str] = []
    reply = app(environ, lambda status, headers, problem=None: statuses.append(status))
    b"".join(reply)
    if hasattr(reply, "close"):
        reply.close()
    return statuses[0]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {"messages": MESSAGES}, "200"),
        (CHAT, {"messages": MESSAGES, "stream": True, "n": 2}, "200"),
        (CHAT, {"messages": MESSAGES, "tools": [{"function": FUNCTION}], "tool_choice": "required"}, "200"),
        (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_object"}}, "200"),
        ("/v1/messages", {"model": "understudy-tiny", "messages": MESSAGES, "max_tokens": 3}, "200"),
        ("/v1/responses", {"input": "hi", "stream": True}, "200"),
        (LOAD, {"lora_name": "a", "lora_path": "b", "load_inplace": True}, "200"),
        (CHAT, {"messages": MESSAGES, "model": "nobody"}, "404"),
        (CHAT, {"messages": 3}, "400"),
        (CHAT, {"messages": MESSAGES, "stop": [1]}, "400"),
        (CHAT, {"messages": MESSAGES, "temperature": 9}, "400"),
        (CHAT, {"messages": MESSAGES, "stream": True, "logprobs": True, "top_logprobs": 99}, "200"),
        ("/v1/messages", {"messages": 3}, "400"),
        ("/v1/messages", {"model": "nobody", "messages": MESSAGES, "max_tokens": 3}, "404"),
        (LOAD, {"lora_name": ""}, "400"),
        ("/admin/config", {"inter-token-latency": "0s"}, "200"),
        ("/admin/config", {"port": 1}, "400"),
    ],
)
def test_a_request_leaves_nothing_behind(app: Understudy, path: str, body: Any, status: str) -> None:
    assert call(app, path, body).startswith(status)
    assert leftovers(lambda: call(app, path, body)) < 1


@pytest.mark.parametrize("fault", ["error", "rate-limit; rate=1", "truncate", "malformed-chunk"])
def test_a_fault_on_purpose_leaves_nothing_behind(app: Understudy, fault: str) -> None:
    body = {"messages": MESSAGES, "stream": True}
    assert leftovers(lambda: call(app, CHAT, body, HTTP_X_FAULT=fault)) < 1


def test_a_path_that_leads_nowhere_leaves_no_frames(app: Understudy) -> None:
    assert leftovers(lambda: call(app, "/nowhere", {})) < 12, "the general search for routes leaves a little"
