"""What vLLM 0.32.0 refuses, and how: status, type and param. Checked against its own request models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import requests

from tests.conformance.calls import CHAT, DETOKENIZE, MESSAGES, TEXT, TOKENIZE, chat, error_of, post
from tests.running_server import RunningServer

BATCH = f"{CHAT}/batch"

RULES: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {"messages": [{"role": "user", "content": "é" * 9000}]}, "input_tokens"),
    (CHAT, {"messages": []}, None),
    (CHAT, {"chat_template": "x"}, None),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (TEXT, {"prompt": [5] * 2048}, "max_tokens"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"stream": True, "use_beam_search": True}, None),
    (DETOKENIZE, {"tokens": [2**32]}, None),
    (BATCH, {"reasoning_effort": "much"}, None),
]

SCHEMA: list[tuple[str, Any, str]] = [
    (CHAT, {"messages": [5]}, "body.messages.0.ChatCompletionDeveloperMessageParam"),
    (BATCH, {"seed": "x"}, "body.seed"),
    (TEXT, {"prompt": ["a", 1]}, "body.prompt.0"),
    (TOKENIZE, {"prompt": 5}, "body.prompt"),
    (DETOKENIZE, {"tokens": [-1]}, "body.tokens.0"),
]

BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    BATCH: {"messages": [MESSAGES]},
    TEXT: {"prompt": "hello"},
    TOKENIZE: {"prompt": "hello"},
    DETOKENIZE: {"tokens": [1]},
}


@pytest.mark.parametrize(("path", "asked", "param"), RULES)
def test_a_broken_rule_is_a_bad_request_error(
    vllm: RunningServer, path: str, asked: Mapping[str, Any], param: str | None
) -> None:
    assert error_of(post(vllm, path, {**BASE[path], **asked})) == (400, "BadRequestError", param)


@pytest.mark.parametrize(("path", "asked", "param"), SCHEMA)
def test_a_wrong_type_is_a_bad_request_with_its_path(
    vllm: RunningServer, path: str, asked: Mapping[str, Any], param: str
) -> None:
    assert error_of(post(vllm, path, {**BASE[path], **asked})) == (400, "Bad Request", param)


def raw(server: RunningServer, path: str, body: str | bytes, media_type: str) -> requests.Response:
    return requests.post(server.url + path, data=body, headers={"Content-Type": media_type}, timeout=20)


@pytest.mark.parametrize("path", BASE)
def test_what_is_no_json_object_is_a_bad_request(vllm: RunningServer, path: str) -> None:
    for body, param in (("", "body"), ("[]", "body"), ('{"a":', "body.5")):
        assert error_of(raw(vllm, path, body, "application/json")) == (400, "Bad Request", param)
    for unparsable in (b'{"a":"\xff"}', b'{"a":' * 100_000, b'{"seed":' + b"1" * 5000 + b"}"):
        got = raw(vllm, path, unparsable, "application/json")
        assert (got.status_code, list(got.json())) == (400, ["detail"])
    for media_type in ("text/plain", "application/x+json", ""):
        got = raw(vllm, path, json.dumps(BASE[path]), media_type)
        assert error_of(got) == (400, "Bad Request", None)


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_model_is_not_found(vllm: RunningServer, path: str) -> None:
    for stream in ({}, {"stream": True}):
        got = post(vllm, path, {**BASE[path], **stream, "model": "nope"})
        assert error_of(got) == (404, "NotFoundError", "model")


def test_what_vllm_takes_is_taken(vllm: RunningServer) -> None:
    asked = {
        **{"unknown": 1, "best_of": 5, "guided_json": 1, "user": "x", "metadata": {"a": 1}, "store": True},
        **{"max_tokens": "2", "stream": None, "stop": None, "temperature": "1", "stream_options": None},
        **{"seed": -1, "response_format": {"type": "text"}},
    }
    assert chat(vllm, **asked)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("length", [3_000, 300_000])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
        (BATCH, lambda text: {"messages": [[{"role": "user", "content": text}]]}),
        (TEXT, lambda text: {"prompt": text}),
        ("/v1/messages", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        ("/v1/responses", lambda text: {"input": text}),
    ],
)
def test_every_family_says_by_the_words_of_vllm_that_a_prompt_is_too_long(
    vllm: RunningServer, path: str, asked: Any, length: int
) -> None:
    got = post(vllm, path, {"model": "tiny", **asked("word " * length)})
    assert got.status_code == 400
    assert got.json()["error"]["message"].startswith("This model's maximum context length is 2048 tokens")
