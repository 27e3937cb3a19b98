"""Options of vLLM's command line that change answers, on both ways of a request."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.client import events
from tests.running_server import RunningServer, running_image

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OPTIONS = (
    *("--response-role", "bot", "--return-tokens-as-token-ids", "--fingerprint-mode", "none"),
    *(
        "--enable-per-request-metrics",
        "--sse-keep-alive-interval",
        "1",
        "--enable-tokenizer-info-endpoint",
    ),
    *("--trust-request-chat-template", "--default-chat-template-kwargs", '{"mood": "calm"}'),
    *("--exclude-tools-when-tool-choice-none", "--force-dummy-tokenizer"),
    *("--inter-token-latency", "20ms", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
WAYS = pytest.mark.parametrize("way", [{}, {"TE": "trailers"}], ids=["fast", "general"])
"""The second header means nothing, and only the general way takes it."""
HELLO = [{"role": "user", "content": "hi"}]
MOOD = "{{ mood }} {{ messages[0].content }}{{ tools | length if tools }}"
TIMES = [
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_image("serve", "m", *OPTIONS) as server:
        yield server


def ask(
    server: RunningServer, path: str, body: dict[str, Any], headers: dict[str, str]
) -> requests.Response:
    fields = {"max_tokens": 3, "ignore_eos": True, **body} if path != RESPONSES else body
    answer = requests.post(server.url + path, json=fields, headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer


@WAYS
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "hi"})])
def test_serve_options_add_metrics_to_complete_and_streamed_responses(
    server: RunningServer, path: str, body: dict[str, Any], way: dict[str, str]
) -> None:
    whole = ask(server, path, body, way).json()
    assert whole["system_fingerprint"] is None
    assert list(whole["metrics"]) == [*TIMES, "speculative_decoding"]
    assert whole["metrics"]["generation_time_ms"] == pytest.approx(40)
    assert whole["metrics"]["mean_itl_ms"] == pytest.approx(20)
    assert whole["metrics"]["tokens_per_second"] == pytest.approx(75, rel=0.1)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(ask(server, path, body | usage, way))
    assert not any("system_fingerprint" in chunk or "metrics" in chunk for chunk in chunks)
    assert list(last)[-1] == "metrics" and list(last["metrics"]) == TIMES
    if path == CHAT:
        assert (
            whole["choices"][0]["message"]["role"]
            == chunks[0]["choices"][0]["delta"]["role"]
            == "bot"
        )
    assert ask(server, path, body | {"n": 2}, way).json()["metrics"] is None


@WAYS
def test_waiting_stream_sends_keep_alive_comments(
    server: RunningServer, way: dict[str, str]
) -> None:
    for setting in ("1300ms", "0s"):
        change = {"time-to-first-token": setting}
        assert requests.post(f"{server.url}/admin/config", json=change, timeout=20).ok
        text = ask(server, CHAT, {"messages": HELLO, "stream": True}, way).text
        assert text.startswith(": keep-alive\n\ndata: ") == (setting != "0s")
        assert text.count(": keep-alive") == (setting != "0s")


def test_return_tokens_as_token_ids_option_shows_token_ids_in_logprobs(
    server: RunningServer,
) -> None:
    name = re.compile(r"token_id:\d+")
    chat = ask(server, CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 1}, {}).json()
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert name.fullmatch(entry["token"]) and name.fullmatch(entry["top_logprobs"][0]["token"])
    text = ask(server, TEXT, {"prompt": "hi", "logprobs": 1}, {}).json()
    assert all(map(name.fullmatch, text["choices"][0]["logprobs"]["tokens"]))
    answer = ask(
        server, TEXT, {"prompt": "hi", "logprobs": 1, "return_tokens_as_token_ids": False}, {}
    ).json()
    assert not any(map(name.fullmatch, answer["choices"][0]["logprobs"]["tokens"]))
    include = {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "max_output_tokens": 2,
    }
    response = ask(server, RESPONSES, {"input": "hi", **include}, {}).json()
    [entry, *_] = response["output"][0]["content"][0]["logprobs"]
    assert name.fullmatch(entry["token"]) and bytes(entry["bytes"]).decode() == entry["token"]
    assert list(response["metrics"]) == [*TIMES, "speculative_decoding"]
    streamed = ask(server, RESPONSES, {"input": "hi", "stream": True, **include}, {}).text
    assert streamed.count('"token":"token_id:') >= 4


def test_serve_options_allow_chat_templates_in_requests(
    server: RunningServer,
) -> None:
    body = {"messages": HELLO, "chat_template": MOOD, "return_prompt_text": True}
    for fields, text in (
        ({}, "calm hi"),
        ({"chat_template_kwargs": {"mood": "glad"}}, "glad hi"),
        ({"tools": [TOOL], "tool_choice": "required"}, "calm hi1"),
        ({"tools": [TOOL], "tool_choice": "none"}, "calm hi"),
    ):
        assert ask(server, CHAT, body | fields, {}).json()["prompt_text"] == text
    tokenized = requests.post(
        f"{server.url}/tokenize", json={"messages": HELLO, "chat_template": "x"}, timeout=20
    )
    assert tokenized.json()["count"] == 1
    info = requests.get(f"{server.url}/tokenizer_info", timeout=20).json()
    assert list(info)[0] == "tokenizer_class" and info["eos_token"] == "<|endoftext|>"
    assert "message.role" in info["chat_template"]


def test_server_without_log_stats_reports_no_metrics_of_the_engine() -> None:
    with running_image("serve", "m", "--disable-log-stats", "--force-dummy-tokenizer") as server:
        metrics = requests.get(f"{server.url}/metrics", timeout=20).text
    assert "http_requests_total" in metrics and "vllm:" not in metrics
