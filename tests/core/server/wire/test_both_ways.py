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
WEATHER = {
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"},
        },
        "required": ["city", "unit"],
    },
}
TABLE = {
    "name": "book_table",
    "parameters": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "guests": {"type": "integer", "minimum": 1, "maximum": 9},
            "wishes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["day", "guests", "wishes"],
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}
INVALID = {"name": "broken", "parameters": {"type": "object", "properties": 7}}
QUESTIONS = st.sampled_from(
    ["Hello!", "What is the weather in Rome in celsius?", "Call book_table with guests=3."]
)
FORM_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": QUESTIONS}),
    min_size=1,
    max_size=2,
)
TOOLS = st.lists(st.sampled_from([WEATHER, TABLE, INVALID]), max_size=2).map(
    lambda functions: [{"type": "function", "function": function} for function in functions]
)
FORMATS = st.sampled_from(
    [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        {"type": "json_schema", "json_schema": {"name": "text", "schema": {"type": "string"}}},
        {"type": "json_schema"},
        {"type": "json_object"},
        {"type": "text"},
    ]
)
CHOICES = st.sampled_from(
    ["auto", "required", "none", None, {"type": "function", "function": {"name": "get_weather"}}]
)
FORM_FIELDS = {
    "max_tokens": st.sampled_from([8, 70, 200, 600]),
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "temperature": st.sampled_from([0, 0.7]),
    "seed": st.integers(1, 3),
    "logprobs": st.just(True),
    "stop": st.sampled_from(["e", ["}", "the"]]),
}
FORM_CHATS = st.fixed_dictionaries(
    {"messages": FORM_MESSAGES, "tools": TOOLS},
    optional={**FORM_FIELDS, "tool_choice": CHOICES},
) | st.fixed_dictionaries(
    {"messages": FORM_MESSAGES, "response_format": FORMATS},
    optional={**FORM_FIELDS, "tool_choice": CHOICES},
)
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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fields=FORM_CHATS)
def test_fast_and_general_paths_return_equal_responses_to_any_chat_with_a_form(
    twin: Twin, fields: dict[str, Any]
) -> None:
    body = json.dumps(fields).encode()
    twin.ask(CHAT, body)  # the form is known from its second use on
    for _ in range(MAX_TRIES if fields.get("stream") else 2):
        plain, general = twin.ask(CHAT, body)
        if plain == general:
            break
    assert plain == general


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {"response_format": form}


@pytest.mark.parametrize(
    ("form", "is_fast"),
    [
        ({"tools": [{"type": "function", "function": WEATHER}]}, True),
        ({"tools": [{"type": "function", "function": TABLE}], "tool_choice": "required"}, True),
        (json_format(PERSON), True),
        ({"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "none"}, False),
        ({"tools": [{"type": "function", "function": WEATHER}] * 9}, False),
        ({"tools": [{"type": "function", "function": {"name": "x", "description": "y" * 5000}}]}, False),
        (json_format({"type": "string", "pattern": "a+"}), False),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)  # fmt: skip
def test_chat_with_a_form_takes_the_fast_path_once_the_form_is_known(
    twin: Twin, form: dict[str, Any], is_fast: bool
) -> None:
    fast: list[float] = []
    for number in range(5):
        messages = [{"role": "user", "content": f"Question {number}"}]
        fields = {"messages": messages, "max_tokens": 200, **form, "user": str(is_fast)}
        if "tools" in form and not number:  # a call compiles the schemas
            fields["tool_choice"] = "required"
        plain, general = twin.ask(CHAT, json.dumps(fields).encode())
        assert plain == general
        fast.append(twin.ways()[0]["fast"])
    assert fast[4] - fast[2] == (2 if is_fast else 0)


def test_known_format_does_not_excuse_a_choice_without_tools(twin: Twin) -> None:
    messages = [{"role": "user", "content": "Hello!"}]
    fields = {"messages": messages, "max_tokens": 200, **json_format(PERSON)}
    for _ in range(3):
        twin.ask(CHAT, json.dumps(fields).encode())
    plain, general = twin.ask(CHAT, json.dumps({**fields, "tool_choice": "auto"}).encode())
    assert plain == general and plain[0] == 400


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
