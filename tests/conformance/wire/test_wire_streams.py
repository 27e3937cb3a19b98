"""Streams of vLLM 0.32.0 that no recorded exchange shows: order, keys, usage, errors inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.calls import (
    DONE,
    HEAD_KEYS,
    TEXT,
    chat_stream,
    choices,
    error_of,
    post,
    text_stream,
    token_ids,
)
from tests.running_server import RunningServer, running_server


def test_every_role_comes_before_the_first_token(vllm: RunningServer) -> None:
    chunks = choices(chat_stream(vllm, n=3))
    assert [choice["index"] for choice in chunks[:3]] == [0, 1, 2]
    assert ["role" in choice["delta"] for choice in chunks] == [True] * 3 + [False] * 6


CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def test_continuous_usage_counts_on_in_a_chat(vllm: RunningServer) -> None:
    role, first, last, usage, _ = chat_stream(vllm, **CONTINUOUS)
    assert list(role) == [*HEAD_KEYS, "usage", "prompt_token_ids", "prompt_text"]
    assert list(first) == list(last) == [*HEAD_KEYS, "usage"]
    prompt = usage["usage"]["prompt_tokens"]
    assert [list(chunk["usage"].items()) for chunk in (role, first, last)] == [
        [
            ("prompt_tokens", prompt),
            ("total_tokens", prompt + count),
            ("completion_tokens", count),
            ("completion_tokens_details", None),
        ]
        for count in (0, 1, 2)
    ]


def test_a_chat_stream_echoes_after_all_roles(vllm: RunningServer) -> None:
    chunks = chat_stream(vllm, echo=True, add_generation_prompt=False, n=2)
    assert [choice["delta"] for choice in choices(chunks)[:4]] == [
        {"role": "user", "content": ""},
        {"role": "user", "content": ""},
        {"content": "hi"},
        {"content": "hi"},
    ]
    assert list(chunks[2]["choices"][0]) == ["index", "delta", "logprobs", "finish_reason"]


def test_a_completion_stream_echoes_in_the_first_chunk_of_each_choice(vllm: RunningServer) -> None:
    chunks = choices(text_stream(vllm, echo=True, n=2, logprobs=0))
    first = {choice["index"]: choice for choice in reversed(chunks)}
    for choice in first.values():
        assert choice["text"].startswith("hello")
        assert choice["prompt_token_ids"] == token_ids(vllm)
        assert choice["logprobs"]["text_offset"][0] == 0
    others = [choice for choice in chunks if choice is not first[choice["index"]]]
    assert [choice["prompt_token_ids"] for choice in others] == [None, None]
    (only, _) = text_stream(vllm, echo=True, max_tokens=0)
    assert only["choices"][0]["text"] == "hello"


def test_streamed_log_probabilities_come_with_their_tokens(vllm: RunningServer) -> None:
    role, *tokens = choices(chat_stream(vllm, logprobs=True, top_logprobs=2))
    assert role["logprobs"] is None
    assert [len(choice["logprobs"]["content"]) for choice in tokens] == [1, 1]
    first, second = choices(text_stream(vllm, logprobs=1))
    assert first["logprobs"]["text_offset"] == [0]
    assert second["logprobs"]["text_offset"] == [len(first["logprobs"]["tokens"][0])]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": [[]]}, None),
        ({"prompt": [""]}, None),
        ({"prompt": [10**6]}, None),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)
def test_what_only_the_engine_refuses_comes_inside_the_stream(
    vllm: RunningServer, asked: Mapping[str, Any], param: str | None
) -> None:
    error, done = text_stream(vllm, **asked)
    assert {name: error["error"][name] for name in ("type", "param", "code")} == {
        "type": "BadRequestError",
        "param": param,
        "code": 400,
    }
    assert done == DONE
    whole = post(vllm, TEXT, {"prompt": "hello", **asked})
    assert error_of(whole) == (400, "BadRequestError", param)


@pytest.mark.parametrize("latency", ["0s", "1ms"], ids=["joined", "paced"])
def test_no_stream_of_any_family_is_held_back_by_a_proxy(latency: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    asked: Mapping[str, Mapping[str, Any]] = {
        "/v1/chat/completions": chat,
        "/v1/completions": {"prompt": "Hi"},
        "/v1/messages": chat,
        "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
        "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}},
    }
    with running_server("--inter-token-latency", latency, "--enable-scale-out") as server:
        for path, fields in asked.items():
            for more in ({}, {"logprobs": None}):  # a field that no fast path takes
                body = {"model": "understudy-tiny", "max_tokens": 3, "stream": True, **fields, **more}
                answer = post(server, path, body)
                assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
                assert answer.headers["x-accel-buffering"] == "no"
            whole = post(server, path, {**body, "stream": False})
            assert whole.status_code == 200 and "x-accel-buffering" not in whole.headers
