"""Ids, tokens and routes as vLLM 0.32.0 has them."""

from __future__ import annotations

import pytest
import requests

from tests.conformance.calls import (
    CHAT,
    DETOKENIZE,
    MESSAGES,
    TEXT,
    TOKENIZE,
    chat,
    events,
    ok,
    post,
)
from tests.running_server import RunningServer


def test_the_header_names_the_answer_before_the_body_does(vllm: RunningServer) -> None:
    body = {"prompt": "hello", "max_tokens": 1, "request_id": "from-body"}
    assert post(vllm, TEXT, body).json()["id"] == "cmpl-from-body"
    got = post(vllm, TEXT, body, **{"X-Request-Id": "from-header"})
    assert got.json()["id"] == "cmpl-from-header"
    assert got.headers["X-Request-Id"] == "from-header"


def test_every_chunk_of_a_stream_has_the_clients_id(vllm: RunningServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "stream": True}
    got = post(vllm, CHAT, body, **{"X-Request-Id": "mine"})
    assert {event["id"] for event in events(got)[:-1]} == {"chatcmpl-mine"}
    assert got.headers["X-Request-Id"] == "mine"


def test_fresh_ids_are_hexadecimal(vllm: RunningServer) -> None:
    got = post(vllm, CHAT, {"messages": MESSAGES, "max_tokens": 1})
    prefix, _, name = got.json()["id"].partition("-")
    assert (prefix, len(name), len(bytes.fromhex(name))) == ("chatcmpl", 16, 8)
    assert len(bytes.fromhex(got.headers["X-Request-Id"])) == 16


def test_tokenize_and_detokenize_undo_each_other(vllm: RunningServer) -> None:
    prompt = "Zwölf Boxkämpfer 🥊 jagen\n\t世界"
    answer = ok(post(vllm, TOKENIZE, {"prompt": prompt, "return_token_strs": True}))
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert ok(post(vllm, DETOKENIZE, {"tokens": answer["tokens"]})) == {"prompt": prompt}


def test_tokenize_counts_a_chat_as_the_chat_does(vllm: RunningServer) -> None:
    for asked in ({}, {"add_generation_prompt": False}):
        tokens = ok(post(vllm, TOKENIZE, {"messages": MESSAGES, **asked}))
        answer = chat(vllm, return_token_ids=True, **asked)
        assert tokens["tokens"] == answer["prompt_token_ids"]
        assert tokens["token_strs"] is None


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("OPTIONS", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_not_allowed(vllm: RunningServer, method: str, path: str, allow: str) -> None:
    got = requests.request(method, vllm.url + path, timeout=20)
    assert (got.status_code, got.headers["Allow"]) == (405, allow)
    assert got.headers["Content-Type"] == "application/json"
    assert method == "HEAD" or got.json() == {"detail": "Method Not Allowed"}


@pytest.mark.parametrize("path", ["/v1", "/v1/models/tiny", "/nope", "/nope/", "/V1/models"])
def test_an_unknown_path_is_not_found(vllm: RunningServer, path: str) -> None:
    got = requests.get(vllm.url + path, timeout=20)
    assert (got.status_code, got.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/?x=1", "/v1/chat/completions/", "/health/"])
def test_a_slash_too_many_is_redirected(vllm: RunningServer, path: str) -> None:
    got = requests.get(vllm.url + path, allow_redirects=False, timeout=20)
    assert got.status_code == 307
    assert got.headers["Location"] == vllm.url + path.replace("/?", "?").rstrip("/")
    assert got.content == b"" and "Content-Type" not in got.headers


def test_health_says_nothing(vllm: RunningServer) -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health/ready")):
        got = requests.request(method, vllm.url + path, timeout=20)
        assert (got.status_code, got.content, got.headers["Content-Length"]) == (200, b"", "0")
        assert "Content-Type" not in got.headers
