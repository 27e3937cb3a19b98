"""POST /invocations: a body goes to the first family that it fits, in vLLM's order."""

from __future__ import annotations

from functools import cache

import pytest
from flask.testing import FlaskClient

from app.wiring.factory import create_app
from config.loader import load

PATH = "/invocations"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PAIR = {"query": "cat", "documents": ["a cat"]}
BAD, RULE = "Bad Request", "BadRequestError"


@cache
def client_of(task: str) -> FlaskClient:
    return create_app(load(["--force-dummy-tokenizer", "--task", task], {})).test_client()


@pytest.mark.parametrize(
    ("task", "body", "begins"),
    [
        ("generate", CHAT, "chatcmpl-"),
        ("generate", {**CHAT, "prompt": "both"}, "chatcmpl-"),
        ("generate", {"prompt": "hello", "max_tokens": 2}, "cmpl-"),
        ("embed", {"input": "hi"}, "embd-"),
        ("embed", {"messages": CHAT["messages"]}, "embd-"),
        ("embed", {"input": "hi", "embed_dtype": "float32", **PAIR}, "embd-"),
        ("embed", PAIR, "score-"),
        ("embed", {"text_1": "a", "text_2": "b"}, "score-"),
        ("classify", {"input": "hi"}, "classify-"),
        ("score", PAIR, "score-"),
        ("pooling", {"input": "hi", "task": "classify"}, "embd-"),
    ],
)
def test_a_body_goes_to_its_family(task: str, body: object, begins: str) -> None:
    told = client_of(task).post(PATH, json=body)
    assert told.status_code == 200, told.text
    assert told.get_json()["id"].startswith(begins)


@pytest.mark.parametrize(
    ("task", "body", "kind", "param"),
    [
        ("generate", {"prompt": "x", "max_tokens": "many"}, RULE, None),
        ("generate", [1], RULE, None),
        ("generate", {"prompt": ""}, RULE, "prompt"),
        ("generate", {**CHAT, "stream_options": {"include_usage": True}}, RULE, "stream_options"),
        ("classify", {}, RULE, None),
        ("embed", {"input": "x", "normalize": True}, RULE, "normalize"),
    ],
)
def test_refusals(task: str, body: object, kind: str, param: str | None) -> None:
    told = client_of(task).post(PATH, json=body)
    error = told.get_json()["error"]
    assert (told.status_code, error["type"], error["param"]) == (400, kind, param)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_what_is_no_json(content_type: str) -> None:
    told = client_of("generate").post(PATH, data="{", content_type=content_type)
    assert (told.status_code, told.get_json()["error"]["type"]) == (400, BAD)
    assert told.get_json()["error"]["param"] is None


def test_a_header_names_the_model() -> None:
    headers = {"X-Amzn-SageMaker-Adapter-Identifier": "missing"}
    assert client_of("generate").post(PATH, json=CHAT, headers=headers).status_code == 404
