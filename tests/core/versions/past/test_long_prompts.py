"""Errors of prompts that are too long, by release: clients read their numbers."""

from typing import Any

import pytest

from tests.application import app_of

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
LONG: dict[str, Any] = {"messages": [{"role": "user", "content": "word " * 100}]}
LIMIT = "'max_tokens' or 'max_completion_tokens' is too large: "


@pytest.mark.parametrize(
    ("release", "path", "body", "words"),
    [
        ("0.15", CHAT, HELLO | {"max_tokens": 64}, f"{LIMIT}64. "),
        ("0.15", CHAT, HELLO | {"max_tokens": 900}, f"{LIMIT}900. "),
        ("0.15", CHAT, LONG, "tokens. However, your request has 107 input tokens."),
        ("0.14", CHAT, LONG, "Please reduce the length of the input messages. (parameter="),
        ("0.13", CHAT, LONG, "Please reduce the length of the input messages. None"),
        (
            "0.15",
            COMPLETION,
            {"prompt": "a " * 80, "max_tokens": 4},
            "context length is 60 tokens.",
        ),
        ("0.14", COMPLETION, {"prompt": "a", "max_tokens": 900}, "'max_tokens' (900) cannot be"),
        ("0.13", COMPLETION, {"prompt": "a", "max_tokens": 900}, "context length is -836 tokens."),
        ("0.10", COMPLETION, {"prompt": "a", "max_tokens": 900}, "This maximum context length is "),
        ("0.17", CHAT, LONG | {"max_tokens": 4}, "You passed 61 input tokens and requested 4 "),
        ("0.17", CHAT, HELLO | {"max_tokens": 900}, "max_tokens=900cannot be greater than "),
        ("0.31", CHAT, LONG | {"max_tokens": 4}, "contains at least 61 input tokens, for a total"),
    ],
)
def test_error_has_the_words_of_the_release(
    release: str, path: str, body: dict[str, Any], words: str
) -> None:
    flags = ("--max-model-len", "64", "--vllm-version", release)
    answer = app_of(*flags).test_client().post(path, json=body)
    assert answer.status_code == 400
    assert words in answer.get_json()["error"]["message"]


@pytest.mark.parametrize(("release", "status"), [("0.15", 200), ("0.16", 400)])
def test_responses_lower_their_limit_before_016(release: str, status: int) -> None:
    flags = ("--max-model-len", "64", "--vllm-version", release)
    body = {"input": "Hi", "max_output_tokens": 900}
    assert app_of(*flags).test_client().post("/v1/responses", json=body).status_code == status
