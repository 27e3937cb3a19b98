"""What vLLM 0.32.0 refuses, and how: status, type and param. Checked against its own request models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import requests

from tests.conformance.wire import CHAT, DETOKENIZE, MESSAGES, TEXT, TOKENIZE, chat, error_of, post
from tests.running_server import RunningServer

BATCH = f"{CHAT}/batch"

RULES: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": -1}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 2049}, "max_completion_tokens"),
    (TEXT, {"max_tokens": 0}, "max_tokens"),
    (TEXT, {"max_tokens": 2049}, "max_tokens"),
    (TEXT, {"prompt": [5] * 2048}, "max_tokens"),
    (TEXT, {"prompt": [5] * 2049}, "input_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "é" * 9000}]}, "input_tokens"),
    (CHAT, {"n": 0}, None),
    (CHAT, {"n": 100_000}, None),
    (TEXT, {"n": -1}, None),
    (CHAT, {"temperature": 3}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"top_k": -2}, None),
    (CHAT, {"min_p": 2}, None),
    (CHAT, {"presence_penalty": 3}, None),
    (CHAT, {"repetition_penalty": 0}, None),
    (CHAT, {"min_tokens": 99, "max_tokens": 9}, None),
    (CHAT, {"stop": ""}, None),
    (CHAT, {"n": 2, "temperature": 0}, None),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs"),
    (CHAT, {"prompt_logprobs": 21}, "prompt_logprobs"),
    (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (TEXT, {"logprobs": -2}, "logprobs"),
    (TEXT, {"logprobs": "2"}, "logprobs"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
    (CHAT, {"bad_words": [""]}, None),
    (CHAT, {"truncate_prompt_tokens": 5000}, "truncate_prompt_tokens"),
    (CHAT, {"truncate_prompt_tokens": 0}, None),
    (CHAT, {"cache_salt": ""}, "cache_salt"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"messages": []}, None),
    (CHAT, {"messages": None}, None),
    (CHAT, {"chat_template": "x"}, None),
    (CHAT, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": [[]]}, None),
    (TEXT, {"prompt": ["x"] * 1025}, "prompt"),
    (TEXT, {"prompt": [10**6]}, None),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"stream": True, "use_beam_search": True}, None),
    (DETOKENIZE, {"tokens": [2**32]}, None),
    (BATCH, {"response_format": {"type": "yaml"}}, None),
    (BATCH, {"reasoning_effort": "much"}, None),
]

SCHEMA: list[tuple[str, Any, str]] = [
    (CHAT, {"max_tokens": "x"}, "body.max_tokens"),
    (CHAT, {"max_tokens": 1.5}, "body.max_tokens"),
    (CHAT, {"n": []}, "body.n"),
    (BATCH, {"seed": "x"}, "body.seed"),
    (CHAT, {"temperature": "hot"}, "body.temperature"),
    (CHAT, {"stop": ["a"] * 5}, "body.stop"),
    (CHAT, {"stop": 5}, "body.stop"),
    (CHAT, {"stream": "x"}, "body.stream"),
    (CHAT, {"seed": 2**63}, "body.seed"),
    (CHAT, {"logit_bias": {"5": "x"}}, "body.logit_bias.5"),
    (CHAT, {"stop_token_ids": ["x"]}, "body.stop_token_ids.0"),
    (CHAT, {"truncate_prompt_tokens": -2}, "body.truncate_prompt_tokens"),
    (CHAT, {"echo": None}, "body.echo"),
    (CHAT, {"model": 5}, "body.model"),
    (CHAT, {"messages": [5]}, "body.messages.0.ChatCompletionDeveloperMessageParam"),
    (TEXT, {"prompt": 5}, "body.prompt"),
    (TEXT, {"prompt": ["a", 1]}, "body.prompt.0"),
    (TEXT, {"prompt": [-1]}, "body.prompt.0"),
    (TEXT, {"logprobs": 1.5}, "body.logprobs"),
    (TOKENIZE, {"prompt": 5}, "body.prompt"),
    (DETOKENIZE, {"tokens": "x"}, "body.tokens"),
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


@pytest.mark.parametrize("path", BASE)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ("", "body"),
        ("null", "body"),
        ("[]", "body"),
        ("5", "body"),
        ("{", "body.1"),
        ('{"a":1}x', "body.7"),
        ('{"a":', "body.5"),
        ("{'a':1}", "body.1"),
    ],
)
def test_what_is_no_json_object_is_a_bad_request(
    vllm: RunningServer, path: str, body: str, param: str
) -> None:
    got = requests.post(vllm.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=20)
    assert error_of(got) == (400, "Bad Request", param)


@pytest.mark.parametrize("path", BASE)
@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b'{"a":' * 100_000, b'{"seed":' + b"1" * 5000 + b"}"])
def test_what_cannot_be_parsed_at_all_has_the_frameworks_body(
    vllm: RunningServer, path: str, body: bytes
) -> None:
    got = requests.post(vllm.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=20)
    assert (got.status_code, list(got.json())) == (400, ["detail"])


@pytest.mark.parametrize("path", BASE)
@pytest.mark.parametrize("media_type", ["text/plain", "application/x+json", "multipart/form-data", ""])
def test_another_media_type_is_a_bad_request(vllm: RunningServer, path: str, media_type: str) -> None:
    got = requests.post(
        vllm.url + path, data=json.dumps(BASE[path]), headers={"Content-Type": media_type}, timeout=20
    )
    assert error_of(got) == (400, "Bad Request", None)


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "APPLICATION/JSON"])
def test_json_may_be_spelled_otherwise(vllm: RunningServer, media_type: str) -> None:
    body = json.dumps(BASE[TOKENIZE])
    got = requests.post(vllm.url + TOKENIZE, data=body, headers={"Content-Type": media_type}, timeout=20)
    assert got.status_code == 200


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_model_is_not_found(vllm: RunningServer, path: str) -> None:
    for stream in ({}, {"stream": True}):
        got = post(vllm, path, {**BASE[path], **stream, "model": "nope"})
        assert error_of(got) == (404, "NotFoundError", "model")


@pytest.mark.parametrize("model", [None, "", "tiny"])
def test_a_request_may_leave_the_model_out(vllm: RunningServer, model: str | None) -> None:
    assert chat(vllm, model=model)["model"] == "tiny"


@pytest.mark.parametrize(
    "asked",
    [
        {"unknown": 1},
        {"best_of": 5},
        {"guided_json": 1},
        {"user": "x", "metadata": {"a": 1}, "store": True},
        {"max_tokens": "2"},
        {"max_tokens": 2.0},
        {"stream": None},
        {"stop": None},
        {"temperature": "1"},
        {"stream_options": None},
        {"seed": -1},
        {"response_format": {"type": "text"}},
    ],
)
def test_what_vllm_takes_is_taken(vllm: RunningServer, asked: Mapping[str, Any]) -> None:
    assert chat(vllm, **asked)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("length", [3_000, 300_000])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}], "stream": True}),
        (BATCH, lambda text: {"messages": [[{"role": "user", "content": text}]]}),
        (TEXT, lambda text: {"prompt": text}),
        (TEXT, lambda text: {"prompt": ["short", text]}),
        ("/v1/messages", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        ("/v1/responses", lambda text: {"input": text}),
        ("/v1/responses", lambda text: {"input": text, "stream": True}),
    ],
)
def test_every_family_says_by_the_words_of_vllm_that_a_prompt_is_too_long(
    vllm: RunningServer, path: str, asked: Any, length: int
) -> None:
    got = post(vllm, path, {"model": "tiny", **asked("word " * length)})
    assert got.status_code == 400
    assert got.json()["error"]["message"].startswith("This model's maximum context length is 2048 tokens")
