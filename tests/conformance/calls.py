"""Requests to the endpoints of generation, and their answers, as the checks of this folder see
them.
"""

import json
from collections.abc import Sequence
from typing import Any

import requests

from tests.running_server import RunningServer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
MESSAGES = [{"role": "user", "content": "hi"}]
DONE = "[DONE]"


USAGE_KEYS = [
    *("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"),
    "completion_tokens_details",
]


def post(server: RunningServer, path: str, body: Any, **headers: str) -> requests.Response:
    return requests.post(server.url + path, json=body, headers=headers, timeout=20)


def chat(server: RunningServer, **fields: Any) -> dict[str, Any]:
    return ok(post(server, CHAT, {"messages": MESSAGES, "max_tokens": 2, **fields}))


def text(server: RunningServer, **fields: Any) -> dict[str, Any]:
    return ok(post(server, TEXT, {"prompt": "hello", "max_tokens": 2, **fields}))


def ok(got: requests.Response) -> dict[str, Any]:
    assert got.status_code == 200, got.text
    answer: dict[str, Any] = got.json()
    return answer


def text_stream(server: RunningServer, **fields: Any) -> list[Any]:
    return events(
        post(server, TEXT, {"prompt": "hello", "max_tokens": 2, "stream": True, **fields})
    )


def events(got: requests.Response) -> list[Any]:
    assert got.status_code == 200, got.text
    assert got.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    data = [event.removeprefix("data: ") for event in got.content.decode().split("\n\n")[:-1]]
    return [event if event == DONE else json.loads(event) for event in data]


def error_of(got: requests.Response) -> tuple[int, str, str | None]:
    assert list(got.json()) == ["error"]
    assert list(got.json()["error"]) == ["message", "type", "param", "code"]
    error = got.json()["error"]
    assert error["code"] == got.status_code
    return got.status_code, error["type"], error["param"]


def token_ids(server: RunningServer, prompt: str = "hello") -> list[int]:
    ids: list[int] = ok(post(server, TOKENIZE, {"prompt": prompt}))["tokens"]
    return ids


def choices(chunks: Sequence[Any]) -> list[dict[str, Any]]:
    return [chunk["choices"][0] for chunk in chunks if chunk != DONE and chunk["choices"]]


def named_events(got: requests.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a stream whose events are named by their types."""
    assert got.status_code == 200, got.text
    assert got.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    return parsed(got.content)


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The JSON of every event; each has a name, which is its type, and nothing else."""
    *events, tail = data.decode().split("\n\n")
    assert tail == ""
    parsed_events = []
    for event in events:
        name, line = event.split("\n")
        parsed_events.append(json.loads(line.removeprefix("data: ")))
        assert name == "event: " + parsed_events[-1]["type"]
    return parsed_events
