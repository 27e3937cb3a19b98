"""Answers of pooling routes before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from tests.application import app_of

EMBED = ("--task", "embed", "--force-dummy-tokenizer")
CLASSIFY = ("--task", "classify", "--force-dummy-tokenizer")
Body = dict[str, Any]
HELLO: Body = {"input": "hello"}
PAIRS: Body = {"text_1": ["a", "d"], "text_2": ["b", "c"]}
MESSAGES = [{"role": "user", "content": "hi"}]
OTHER_TASK = "The model does not support Chat Completions API"


def client_of(version: str, flags: tuple[str, ...] = EMBED) -> Client:
    return app_of("--vllm-version", version, *flags).test_client()


def posted(client: Client, path: str, body: Body) -> tuple[int, Body]:
    answer = client.post(path, json=body)
    result: Body = {}
    if answer.content_type == "application/json":
        result = json.loads(answer.data)
    return answer.status_code, result


@pytest.mark.parametrize(
    ("path", "body", "release", "before", "after"),
    [
        pytest.param(
            "/v1/embeddings",
            {"input": MESSAGES},
            ("0.23", "0.24"),
            400,
            200,
            id="conversations as input",
        ),
        pytest.param(
            "/v1/embeddings",
            {"messages": [MESSAGES, MESSAGES]},
            ("0.23", "0.24"),
            400,
            200,
            id="several conversations",
        ),
        pytest.param(
            "/v1/embeddings",
            {**HELLO, "normalize": False},
            ("0.25", "0.26"),
            200,
            400,
            id="normalize",
        ),
        pytest.param(
            "/v1/embeddings",
            {**HELLO, "cache_salt": ""},
            ("0.24", "0.25"),
            200,
            400,
            id="empty salt",
        ),
        pytest.param(
            "/v1/embeddings", {**HELLO, "padding": "x"}, ("0.28", "0.29"), 200, 400, id="padding"
        ),
        pytest.param(
            "/v1/embeddings",
            {**HELLO, "encoding_format": "bytes_only"},
            ("0.12", "0.13"),
            400,
            200,
            id="bytes without metadata",
        ),
        pytest.param(
            "/v1/embeddings",
            {**HELLO, "encoding_format": "bytes"},
            ("0.11.0", "0.11.1"),
            400,
            200,
            id="bytes",
        ),
        pytest.param("/pooling", HELLO, ("0.12", "0.13"), 400, 200, id="pooling without a task"),
        pytest.param(
            "/pooling",
            {**HELLO, "task": "token_embed"},
            ("0.20", "0.21"),
            200,
            400,
            id="another task of the model",
        ),
        pytest.param(
            "/score",
            {"queries": "a", "documents": ["b"]},
            ("0.14", "0.15"),
            400,
            200,
            id="queries and documents",
        ),
        pytest.param(
            "/score", {"queries": "a", "items": ["b"]}, ("0.15", "0.16"), 400, 200, id="items"
        ),
        pytest.param(
            "/rerank",
            {"query": "a", "documents": ["b"], "top_n": -1},
            ("0.23", "0.24"),
            200,
            400,
            id="negative number of documents",
        ),
        pytest.param(
            "/v1/chat/completions",
            {"messages": MESSAGES},
            ("0.15", "0.16"),
            200,
            404,
            id="routes of generating models",
        ),
        pytest.param("/v1/responses", {"input": "hi"}, ("0.15", "0.16"), 200, 404, id="responses"),
        pytest.param(
            "/v1/messages",
            {"messages": MESSAGES, "max_tokens": 1},
            ("0.15", "0.16"),
            400,
            404,
            id="messages",
        ),
    ],
)
def test_status(path: str, body: Body, release: tuple[str, str], before: int, after: int) -> None:
    statuses = [posted(client_of(version), path, body)[0] for version in release]
    assert statuses == [before, after]


def test_classes_are_of_texts_alone_before_015() -> None:
    statuses = [
        posted(client_of(version, CLASSIFY), "/classify", {"input": [10, 11]})[0]
        for version in ("0.14", "0.15")
    ]
    assert statuses == [400, 200]


@pytest.mark.parametrize(("version", "tokens"), [("0.29", 6), ("0.30", 4)])
def test_usage_of_scores(version: str, tokens: int) -> None:
    client = client_of(version)
    status, answer = posted(client, "/score", PAIRS)
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("version", "usage"), [("0.12", {"total_tokens"}), ("0.13", {"prompt_tokens", "total_tokens"})]
)
def test_usage_of_ranks(version: str, usage: set[str]) -> None:
    status, answer = posted(client_of(version), "/rerank", {"query": "a", "documents": ["b"]})
    assert status == 200, answer
    assert set(answer["usage"]) == usage


@pytest.mark.parametrize(("version", "has_details"), [("0.27", False), ("0.28", True)])
def test_usage_of_embeddings(version: str, has_details: bool) -> None:
    status, answer = posted(client_of(version), "/v1/embeddings", HELLO)
    assert status == 200, answer
    assert ("completion_tokens_details" in answer["usage"]) == has_details


@pytest.mark.parametrize(
    ("version", "is_nested"), [("0.18", True), ("0.19", False), ("0.33", False)]
)
def test_default_task_of_pooling(version: str, is_nested: bool) -> None:
    status, answer = posted(client_of(version), "/pooling", HELLO)
    assert status == 200, answer
    assert isinstance(answer["data"][0]["data"][0], list) == is_nested


def test_pooling_fails_with_a_success_in_010() -> None:
    status, answer = posted(client_of("0.10"), "/pooling", HELLO)
    assert (status, answer["error"]["code"]) == (200, 400)


def test_another_task_is_named_with_the_status_of_a_success() -> None:
    _, answer = posted(client_of("0.15"), "/v1/chat/completions", {"messages": MESSAGES})
    assert answer["error"]["message"] == OTHER_TASK


@pytest.mark.parametrize(("version", "is_unit"), [("0.11", False), ("0.16", False), ("0.17", True)])
def test_normalize_keeps_the_length_of_a_vector(version: str, is_unit: bool) -> None:
    body = {**HELLO, "normalize": False}
    _, answer = posted(client_of(version), "/v1/embeddings", body)
    length = sum(number * number for number in answer["data"][0]["embedding"])
    assert (length == pytest.approx(1)) == is_unit


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.10", "This maximum context length is 32 tokens. However, your request has 40 input"),
        ("0.15", "This model's maximum context length is 32 tokens. However, your request has 40"),
        ("0.31", "you requested 0 output tokens and your prompt contains at least 33 input tokens"),
        ("0.32", "your prompt contains at least 33 input tokens, which exceeds this limit"),
    ],
)
def test_error_of_a_text_that_is_too_long(version: str, words: str) -> None:
    client = client_of(version, (*EMBED, "--max-model-len", "32"))
    status, answer = posted(client, "/v1/embeddings", {"input": " ".join(["hello"] * 40)})
    assert status == 400
    assert words in answer["error"]["message"]
