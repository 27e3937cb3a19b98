"""What no recorded exchange of vLLM 0.32.0 shows: answers, streams, errors, ids and routes."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.calls import (
    CHAT,
    DETOKENIZE,
    DONE,
    MESSAGES,
    TEXT,
    TOKENIZE,
    chat,
    error_of,
    events,
    ok,
    post,
    text,
    text_stream,
    token_ids,
)
from tests.running_server import RunningServer, running_server

PROXY_HEADERS = {"cache-control", "x-accel-buffering"}
"""Headers of streams with which some servers ask proxies not to hold them back."""


def test_completion_with_echo_starts_with_the_prompt(vllm: RunningServer) -> None:
    assert text(vllm, echo=True)["choices"][0]["text"].startswith("hello")
    only = text(vllm, echo=True, max_tokens=0)
    assert only["choices"][0]["text"] == "hello"
    assert only["choices"][0]["finish_reason"] == "length"
    assert only["usage"]["completion_tokens"] == 1


def test_echo_with_token_ids_omits_the_prompt_text(vllm: RunningServer) -> None:
    choice = text(vllm, echo=True, return_token_ids=True)["choices"][0]
    assert not choice["text"].startswith("hello")
    assert choice["prompt_token_ids"] == token_ids(vllm)


def test_echo_with_logprobs_starts_with_the_prompt_logprobs(vllm: RunningServer) -> None:
    choice = text(vllm, echo=True, logprobs=1)["choices"][0]
    logprobs = choice["logprobs"]
    prompt = token_ids(vllm)
    assert list(logprobs) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(prompt) + 2}
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert "".join(logprobs["tokens"][: len(prompt)]) == "hello"
    assert len(choice["prompt_logprobs"]) == len(prompt)


def test_return_tokens_as_token_ids_replaces_token_texts_with_ids(vllm: RunningServer) -> None:
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True, "seed": 7}
    choice = chat(vllm, logprobs=True, top_logprobs=1, **fields)["choices"][0]
    for entry, token_id in zip(choice["logprobs"]["content"], choice["token_ids"], strict=True):
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert entry["token"] == f"token_id:{token_id}"
        assert entry["top_logprobs"][0]["bytes"] == list(entry["token"].encode())
    content = choice["message"]["content"]
    assert (
        bytes(sum((entry["bytes"] for entry in choice["logprobs"]["content"]), [])).decode()
        == content
    )
    choice = text(vllm, logprobs=0, **fields)["choices"][0]
    assert choice["logprobs"]["tokens"] == [
        f"token_id:{token_id}" for token_id in choice["token_ids"]
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
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
def test_engine_rejection_is_sent_as_an_error_event_of_the_stream(
    vllm: RunningServer, fields: Mapping[str, Any], param: str | None
) -> None:
    error, done = text_stream(vllm, **fields)
    assert {name: error["error"][name] for name in ("type", "param", "code")} == {
        "type": "BadRequestError",
        "param": param,
        "code": 400,
    }
    assert done == DONE
    whole = post(vllm, TEXT, {"prompt": "hello", **fields})
    assert error_of(whole) == (400, "BadRequestError", param)


@pytest.mark.parametrize("latency", ["0s", "1ms"], ids=["joined", "paced"])
def test_streams_have_no_header_for_proxies_like_those_of_vllm(latency: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    bodies: Mapping[str, Mapping[str, Any]] = {
        "/v1/chat/completions": chat,
        "/v1/completions": {"prompt": "Hi"},
        "/v1/messages": chat,
        "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
        "/inference/v1/generate": {"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}},
    }
    with running_server("--inter-token-latency", latency, "--enable-scale-out") as server:
        for path, fields in bodies.items():
            for extra_fields in ({}, {"logprobs": None}):  # a field that no fast path takes
                body = {
                    "model": "understudy-tiny",
                    "max_tokens": 3,
                    "stream": True,
                    **fields,
                    **extra_fields,
                }
                answer = post(server, path, body)
                assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
                assert not PROXY_HEADERS & set(answer.headers.keys())


BATCH = f"{CHAT}/batch"


BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    BATCH: {"messages": [MESSAGES]},
    TEXT: {"prompt": "hello"},
    TOKENIZE: {"prompt": "hello"},
    DETOKENIZE: {"tokens": [1]},
}


@pytest.mark.parametrize("path", BASE)
def test_unknown_model_returns_404(vllm: RunningServer, path: str) -> None:
    for stream in ({}, {"stream": True}):
        got = post(vllm, path, {**BASE[path], **stream, "model": "nope"})
        assert error_of(got) == (404, "NotFoundError", "model")


@pytest.mark.parametrize("length", [3_000, 300_000])
@pytest.mark.parametrize(
    ("path", "body_of"),
    [
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
        (BATCH, lambda text: {"messages": [[{"role": "user", "content": text}]]}),
        (TEXT, lambda text: {"prompt": text}),
        (
            "/v1/messages",
            lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        ),
        ("/v1/responses", lambda text: {"input": text}),
    ],
)
def test_overlong_prompt_returns_the_context_length_error_of_vllm(
    vllm: RunningServer, path: str, body_of: Any, length: int
) -> None:
    got = post(vllm, path, {"model": "tiny", **body_of("word " * length)})
    assert got.status_code == 400
    assert got.json()["error"]["message"].startswith(
        "This model's maximum context length is 2048 tokens"
    )


def test_every_chunk_of_a_stream_has_the_request_id_of_the_client(vllm: RunningServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "stream": True}
    got = post(vllm, CHAT, body, **{"X-Request-Id": "mine"})
    assert {event["id"] for event in events(got)[:-1]} == {"chatcmpl-mine"}
    assert got.headers["X-Request-Id"] == "mine"


def test_detokenize_reverses_tokenize(vllm: RunningServer) -> None:
    prompt = "Zwölf Boxkämpfer 🥊 jagen\n\t世界"
    answer = ok(post(vllm, TOKENIZE, {"prompt": prompt, "return_token_strs": True}))
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert ok(post(vllm, DETOKENIZE, {"tokens": answer["tokens"]})) == {"prompt": prompt}


def test_tokenize_returns_the_prompt_tokens_of_a_chat(vllm: RunningServer) -> None:
    for template_fields in ({}, {"add_generation_prompt": False}):
        tokens = ok(post(vllm, TOKENIZE, {"messages": MESSAGES, **template_fields}))
        answer = chat(vllm, return_token_ids=True, **template_fields)
        assert tokens["tokens"] == answer["prompt_token_ids"]
        assert tokens["token_strs"] is None


def test_count_tokens_equals_the_input_tokens_of_the_message(vllm: RunningServer) -> None:
    blocks = [{"type": "text", "text": "and"}, {"type": "text", "text": "bye"}]
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": blocks[:1]},
        {"role": "user", "content": blocks},
    ]
    body = {"model": "tiny", "max_tokens": 3, "system": blocks[:1], "messages": turns}
    usage = ok(post(vllm, "/v1/messages", body))["usage"]
    counted = ok(post(vllm, "/v1/messages/count_tokens", body))
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}
