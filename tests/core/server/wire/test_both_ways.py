"""The fast path and Flask give the same answers, metrics and logs."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.raw_client import Wire, get, http_post, requests_by_way, wait_until
from tests.running_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON = "Content-Type: application/json"
GENERAL = "TE: trailers"
"""A header that means nothing here, and that only the general way takes."""
MOMENTS = re.compile(rb'"created":\d+')
TIMED = re.compile(
    r"_(created|seconds|seconds_sum|seconds_bucket)\{?|^(process|python)_|^understudy_requests"
    r"|iteration_tokens_total_(bucket|count)|^http_response_size_bytes_sum"
)
"""Samples that tell of time (a step is what happens in one millisecond, and late tokens share a
chunk), of the process, or of the ways.
"""
MAX_TRIES = 3
"""A worker that is late sends several tokens of a stream in one chunk."""


class Twin:
    """Two servers with the same seed: what one gets as it is, the other gets by the general way."""

    def __init__(self, plain: RunningServer, general: RunningServer) -> None:
        self.plain = plain
        self.general = general
        self.wires = Wire(plain.port), Wire(general.port)

    def ask(self, path: str, body: bytes, *headers: str) -> list[tuple[int, dict[str, str], bytes]]:
        plain, general = self.wires
        plain.send(http_post(path, body, JSON, *headers))
        general.send(http_post(path, body, JSON, *headers, GENERAL))
        return [self._answer(plain), self._answer(general)]

    def _answer(self, wire: Wire) -> tuple[int, dict[str, str], bytes]:
        answer = wire.answer()
        headers = {name: value for name, value in answer.headers.items() if name != "date"}
        return answer.status, headers, MOMENTS.sub(b'"created":0', answer.body)

    def counted(self) -> list[list[str]]:
        texts = [
            get(server.port, "/metrics").body.decode() for server in (self.plain, self.general)
        ]
        return [[line for line in text.splitlines() if not TIMED.search(line)] for text in texts]

    def ways(self) -> list[dict[str, float]]:
        return [requests_by_way(server.port) for server in (self.plain, self.general)]


@pytest.fixture(scope="module", params=["0.32", "0.33"])
def twin(request: pytest.FixtureRequest) -> Iterator[Twin]:
    with ExitStack() as stack:
        flags = ("--seed", "7", "--access-log", "--max-model-len", "256")
        flags += ("--inter-token-latency", "1ms", "--vllm-version", request.param)
        fast = {"SIM_FAST_PATH": "true"}  # also with --general-way
        servers = [stack.enter_context(running_server(*flags, env=fast)) for _ in range(2)]
        twin = Twin(*servers)
        for wire in twin.wires:
            stack.enter_context(wire)
        yield twin


TEXTS = st.text(max_size=40) | st.sampled_from(["Hello!", "What is the weather like?", "x" * 3000])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", "tool", 7]),
            "content": TEXTS | st.none(),
        },
        optional={"name": st.text(max_size=5)},
    ),
    max_size=3,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from([None, "", "understudy-tiny", "other"]),
    "max_tokens": st.integers(-1, 12) | st.sampled_from([None, 300, "5", 2.0]),
    "stream": st.booleans() | st.none(),
    "stream_options": st.sampled_from(
        [None, {"include_usage": True}, {"include_usage": False}, {}]
    ),
    "temperature": st.sampled_from([None, 0, 0.7, 2, 2.5, "1"]),
    "top_p": st.sampled_from([None, 0, 0.5, 1]),
    "n": st.sampled_from([1, 2, 0, None]),
    "seed": st.integers(-2, 3) | st.none(),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(-1, 6),
    "presence_penalty": st.sampled_from([None, 0, 1.5, 3]),
    "stop": st.sampled_from([None, [], "the", ["a", "b"], ""]),
    "user": st.sampled_from([None, "someone"]),
    "logprobs": st.sampled_from([None, True, 2]),
    "top_logprobs": st.sampled_from([None, 0, 3]),
    "echo": st.booleans(),
    "unknown": st.just(1),
}
CHATS = st.fixed_dictionaries(
    {"messages": MESSAGES}, optional={**FIELDS, "max_completion_tokens": st.integers(0, 9)}
)
PROMPTS = TEXTS | st.just(["a", "b"]) | st.just([1, 2, 3])
COMPLETES = st.fixed_dictionaries({"prompt": PROMPTS}, optional=FIELDS)
REQUESTS = st.tuples(st.just(CHAT), CHATS) | st.tuples(st.just(COMPLETIONS), COMPLETES)
HEADERS = st.lists(
    st.sampled_from(
        ["X-Request-Id: abc", "X-Return-Error: 503", "X-Vllm-Priority: 3", "traceparent: x"]
    ),
    max_size=2,
    unique=True,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=REQUESTS, headers=HEADERS)
def test_fast_and_general_paths_return_equal_responses_to_any_request(
    twin: Twin, case: tuple[str, dict[str, Any]], headers: list[str]
) -> None:
    path, fields = case
    for _ in range(MAX_TRIES if fields.get("stream") else 1):
        plain, general = twin.ask(path, json.dumps(fields).encode(), *headers)
        if plain == general:
            break
    assert plain == general


def test_only_requests_with_common_fields_take_the_fast_path(twin: Twin) -> None:
    counts_before = twin.ways()[0]
    plain: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [{"role": "user", "content": "Hello!"}]}),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3, "stream": True},
        ),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "Hello!"}],
                "max_tokens": 9,
                "stop": ["e", "the"],
                "logprobs": True,
                "top_logprobs": 2,
            },
        ),
        (COMPLETIONS, {"prompt": "Hello", "max_tokens": 3, "temperature": 0.5, "seed": 1}),
    ]
    others: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "n": 2}),
        (COMPLETIONS, {"prompt": ["Hello"], "max_tokens": 3}),
        (COMPLETIONS, {"prompt": "Hello", "max_tokens": 0}),
    ]
    for path, fields in plain + others:
        first, second = twin.ask(path, json.dumps(fields).encode())
        assert first == second
    after = twin.ways()[0]
    assert after["fast"] - counts_before["fast"] == len(plain)
    assert twin.ways()[1]["fast"] == 0
    for path, fields in plain + others:
        first, second = twin.ask(
            path, json.dumps(fields).encode(), "endpoint-load-metrics-format: TEXT"
        )
        assert first == second
        has_load_report = (first[0] == 200) - bool(fields.get("stream"))
        assert (
            first[1].get("endpoint-load-metrics", "").count("named_metrics.") == 2 * has_load_report
        )


@pytest.mark.parametrize("connection", [(), ("Connection: close",)])
def test_fast_and_general_paths_return_equal_responses_to_health_probes(
    twin: Twin, connection: tuple[str, ...]
) -> None:
    for path in ("/health", "/ping", "/version", "/load", "/ready", "/health/ready"):
        counts_before = twin.ways()[0]
        answers = []
        for server, extra_headers in ((twin.plain, ()), (twin.general, (GENERAL,))):
            head = "\r\n".join((f"GET {path} HTTP/1.1", "Host: test", *connection, *extra_headers))
            with Wire(server.port) as wire:
                answer = wire.send(f"{head}\r\n\r\n".encode()).answer()
                answers.append((answer.status, answer.headers | {"date": ""}, answer.body))
                if connection:
                    wire.seconds_until_closed()
        assert answers[0] == answers[1]
        after = twin.ways()[0]
        assert (after["probe"] - counts_before["probe"], after["fast"]) == (
            1,
            counts_before["fast"],
        )


def test_fast_path_records_the_same_metrics_and_logs_as_the_general_path(twin: Twin) -> None:
    """After whatever the other tests have asked, too."""
    body = b'{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":5}'
    twin.ask(CHAT, body, "X-Request-Id: the-last")
    plain, general = twin.counted()
    assert plain == general
    # An answer arrives before its line is written, and neither server waits for the other one.
    servers = (twin.plain, twin.general)
    wait_until(lambda: all("the-last" in dict(access_lines(server)) for server in servers))
    assert access_lines(twin.plain) == access_lines(twin.general)


def access_lines(server: RunningServer) -> list[tuple[str, str]]:
    """Request id and line of all but the tests' own questions, without the duration."""
    log_lines = re.findall(r"\[([^\]]*)\] gunicorn\.access: (.*) \d+\.\d+ s$", server.log(), re.M)
    return [line for line in log_lines if "/metrics" not in line[1] and "/health" not in line[1]]
