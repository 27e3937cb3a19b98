"""Requests that our worker passes to the handlers of their routes, without gunicorn and Flask."""

import json
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest

from scripts.surface import is_flag
from tests.hostile.raw_client import (
    Wire,
    get,
    http_post,
    post,
    requests_by_way,
    wait_for_value,
    wait_until,
)
from tests.hostile.waits import wait_for_log
from tests.running_server import RunningServer, free_port, running_command, running_server

CHAT_PATH = "/v1/chat/completions"
GENERAL = "TE: trailers"
"""A header without a meaning here, whose requests are left to gunicorn and Flask."""
FLAGS = (
    "--allow-runtime-lora-updating",
    "--embeddings-with-chat",
    "--enable-responses-store",
    "--enable-tokenizer-info-endpoint",
    '--fake-metrics={"running-requests": 1}',
    "--journal=10",
    "--kv-index",
    "--max-json-values=2000",
    "--max-model-len=512",
    "--profiling",
    "--server-dev-mode",
)
ENDING = frozenset(
    (
        "/admin/drain",
        "/is_paused",
        "/is_sleeping",
        "/pause",
        "/release_kv_cache_memory",
        "/resume_kv_cache_memory",
        "/sleep",
    )
)
"""After some of them a server answers nothing more of interest."""
TIMES = re.compile(rb'"(created|created_at|completed_at)":\d+(\.\d+)?')
DIGITS = re.compile(rb"\d+(\.\d+)?(e[+-]?\d+)?")
REPORTS = re.compile(
    r"/admin|/metrics|/load|/debug|/console|/kv|/stats|/v1/models|/profile|/openapi"
)
"""Start of paths whose answers contain times, sizes of the process and counts of requests."""
OWN_FACTS = ("/admin/journal", "/metrics", "/query", "/server_info")
"""Paths whose answers contain ports, ids of the process, and facts about earlier requests.

The journal also has bodies that the general way leaves unread.
"""
CHAT: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
BODIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    (CHAT_PATH, {**CHAT, "stop": ["e"]}),
    (CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 2}),
    (CHAT_PATH, {**CHAT, "logprobs": True, "stream": True}),
    (CHAT_PATH, {**CHAT, "n": 3, "stream": True}),
    (CHAT_PATH, {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300}),
    (
        CHAT_PATH,
        {
            **CHAT,
            "tools": [TOOL],
            "tool_choice": "required",
            "max_tokens": 300,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (CHAT_PATH, {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 300}),
    (CHAT_PATH, {**CHAT, "model": "none"}),
    (CHAT_PATH, {**CHAT, "temperature": -1}),
    (CHAT_PATH, {**CHAT, "messages": [{"role": "user", "content": "x " * 5000}]}),
    (CHAT_PATH, {"messages": [{"role": "user", "content": str([0] * 3000)}]}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 1}),
    ("/v1/responses", {"input": "Hello!", "max_output_tokens": 16}),
    ("/v1/responses", {"input": "Hello!", "max_output_tokens": 16, "stream": True}),
    ("/v1/messages", {**CHAT, "model": "understudy-tiny"}),
    ("/v1/messages", {**CHAT, "model": "understudy-tiny", "stream": True}),
    ("/v1/messages", {"model": "understudy-tiny"}),
    ("/tokenize", {"prompt": "Hello, wörld!"}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
)


class Pair:
    """Two servers with the same seed. The second one gets all requests by the general way."""

    def __init__(self, direct: RunningServer, general: RunningServer) -> None:
        self.direct = direct
        self.general = general

    def answers(self, method: str, path: str, body: bytes) -> list[tuple[int, Any, bytes]]:
        """Returns status, headers without the date, and body of both answers."""
        return [
            _answer(self.direct, method, path, body),
            _answer(self.general, method, path, body, GENERAL),
        ]


def _answer(
    server: RunningServer, method: str, path: str, body: bytes, *headers: str
) -> tuple[int, Any, bytes]:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with Wire(server.port) as wire:
        answer = wire.send("\r\n".join([*lines, "", ""]).encode() + body).answer()
    shown = {name: value for name, value in answer.headers.items() if name != "date"}
    text = TIMES.sub(rb'"\1":0', answer.body)
    if REPORTS.match(path):
        text = DIGITS.sub(b"0", text)
        shown.pop("content-length", None)
        shown.pop("etag", None)
    if path in OWN_FACTS:
        text = b""
    return answer.status, shown, text


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    flags = ["--seed", "7", "--access-log", *filter(is_flag, FLAGS)]
    env = {"SIM_FAST_PATH": "true"}  # also with --general-way
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server(*flags, env=env)) for _ in range(2)]
        yield Pair(*servers)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_direct_and_general_paths_return_equal_responses(
    pair: Pair, path: str, body: Mapping[str, Any]
) -> None:
    counts_before = requests_by_way(pair.direct.port)
    for data in (json.dumps(body).encode(), json.dumps(body).encode()[:-1]):
        direct, general = pair.answers("POST", path, data)
        assert direct == general
    after = requests_by_way(pair.direct.port)
    served = [after[way] - counts_before[way] for way in ("direct", "fast", "flask")]
    assert sum(served) == 3  # and one question for metrics
    assert served[2] == 0


def test_direct_and_general_paths_return_equal_responses_on_every_route(pair: Pair) -> None:
    # Both are asked, because each logged request draws an id.
    document, _ = [
        json.loads(get(server.port, "/openapi.json").body) for server in (pair.direct, pair.general)
    ]
    request_count = 0
    for path, operations in document["paths"].items():
        if "{" in path or path in ENDING:
            continue
        for method, operation in operations.items():
            body = b""
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                body = json.dumps(content["example"]).encode()
            bodies = [body]
            if method != "get":
                bodies += [b"{", b"[]"]
            for data in bodies:
                direct, general = pair.answers(method.upper(), path, data)
                assert direct == general, (method, path, data)
                request_count += 1
    assert request_count > 100


def test_direct_and_general_paths_write_the_same_access_log_line(pair: Pair) -> None:
    lines = []
    for server, extra_headers in ((pair.direct, ()), (pair.general, (GENERAL,))):
        headers = ("Content-Type: application/json", "X-Request-Id: logged", *extra_headers)
        with Wire(server.port) as wire:
            data = json.dumps({**CHAT, "stop": "e", "seed": 1}).encode()
            assert wire.send(http_post(CHAT_PATH, data, *headers)).answer().status == 200
        line = re.compile(r"\[logged\] gunicorn\.access: (.*) \d+\.\d+ s$", re.MULTILINE)
        wait_until(lambda line=line, server=server: line.search(server.log()) is not None)
        lines.append(line.findall(server.log()))
    assert lines[0] == lines[1]


def test_client_disconnect_during_a_waiting_handler_ends_the_request() -> None:
    flags = ("--time-to-first-token", "30s", "--access-log")
    with running_server(*flags, env={"SIM_FAST_PATH": "true"}) as server:
        with Wire(server.port) as wire:
            wire.post({**CHAT, "stop": "e"}, CHAT_PATH)
            wait_until(lambda: b"num_requests_running{" in get(server.port, "/metrics").body)
            wait_for_value(_running, server, equals=1)
        wait_for_value(_running, server, equals=0)
        wait_for_log(server, f"POST {CHAT_PATH} 499")
        assert requests_by_way(server.port)["direct"] > 0


def _running(server: RunningServer) -> float:
    text = get(server.port, "/metrics").body.decode()
    gauge = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
    assert gauge is not None
    return float(gauge[1])


def test_shutdown_ends_a_handler_that_waits_beyond_the_graceful_timeout() -> None:
    flags = ("--time-to-first-token", "60s", "--graceful-timeout", "1")
    with running_server(*flags, env={"SIM_FAST_PATH": "true"}) as server:
        with Wire(server.port) as wire:
            wire.post({**CHAT, "stop": "e"}, CHAT_PATH)
            wait_for_value(_running, server, equals=1)
            start_s = time.monotonic()
            server.stop()
            wire.seconds_until_closed()
        assert time.monotonic() - start_s < 15
        assert "Traceback" not in server.log()


def test_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    bodies = [{**CHAT, "stop": "e", "seed": seed, "max_tokens": 9} for seed in range(5)]
    requests = [
        http_post(CHAT_PATH, json.dumps(body).encode(), "Content-Type: application/json")
        for body in bodies
    ]
    with Wire(pair.direct.port) as wire, wire.sock.makefile("rb") as received:
        wire.send(b"".join(requests))
        together = [_next_choices(received) for _ in bodies]
    alone = [post(pair.direct.port, body, CHAT_PATH).json()["choices"] for body in bodies]
    assert together == alone


def _next_choices(received: BufferedReader) -> object:
    length = 0
    while line := received.readline().strip():
        name, _, value = line.partition(b":")
        if name == b"Content-Length":
            length = int(value)
    return json.loads(received.read(length))["choices"]


HOOKED = """
from wsgi import app


@app.after_request
def mark(response):
    response.headers["X-Seen"] = "yes"
    return response
"""


ODD = """
import gevent

from app.core.server.http.response import Response
from app.core.server.http.route import get
from app.core.server.middleware.stack import Middleware
from wsgi import app


class Panic(BaseException):
    pass


class Body:
    def __iter__(self):
        return iter([b"x"])

    def close(self):
        raise ValueError("close")


class Failing(Middleware):
    def begin(self, context):
        if "x-panic" in context.headers:
            raise Panic("begin")

    def end(self, context, response):
        if "x-failing" in context.headers:
            raise ValueError("end")


def panics(context):
    raise Panic("at once")


def panics_later(context):
    gevent.sleep(0.01)
    raise Panic("later")


def exits(context):
    raise SystemExit(3)


def waits_too_long(context):
    with gevent.Timeout(0.01):
        gevent.sleep(5)


def breaks_off(context):
    def pieces():
        yield b"x"
        raise Panic("a piece")

    return Response(pieces())


HANDLERS = {
    "panics": panics,
    "panics-later": panics_later,
    "exits": exits,
    "waits-too-long": waits_too_long,
    "nothing": lambda context: None,
    "not-latin-1": lambda context: Response(b"x", headers={"X-Odd": "\u4e2d"}),
    "line-break": lambda context: Response(b"x", headers={"X-Odd": "a\\r\\nX-Even: b"}),
    "breaks-off": breaks_off,
    "close-fails": lambda context: Response(Body()),
    "hops": lambda context: Response(
        b"x", headers={"Connection": "close", "transfer-encoding": "chunked", "Date": "today"}
    ),
    "not-modified": lambda context: Response(b"body", 304),
    "no-content": lambda context: Response(iter([b"body"]), 204),
}
app.add_routes(
    "odd", [get(f"/odd/{name}", handle) for name, handle in HANDLERS.items()]
)
stack = app.middleware
stack.members = (*stack.members, Failing())
stack.refresh()
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose program has added handlers and middleware that fail."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.py").write_text(ODD, "utf-8")
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", str(folder), "odd:app"]
    port = free_port()
    settings = {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port), "SIM_FAST_PATH": "true"}
    with running_command(command, port, settings) as server:
        yield server


@pytest.mark.parametrize(
    "name",
    (
        "panics",
        "panics-later",
        "exits",
        "waits-too-long",
        "nothing",
        "not-latin-1",
        "line-break",
    ),
)
def test_failing_handler_returns_500_and_keeps_the_connection(
    odd: RunningServer, name: str
) -> None:
    request = f"GET /odd/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with Wire(odd.port) as wire:
        for _ in range(2):
            answer = wire.send(request).answer()
            assert answer.status == 500
            assert answer.json()["error"]["type"] == "InternalServerError"
            assert "x-even" not in answer.headers
    wait_for_log(odd, "a request failed unexpectedly")


@pytest.mark.parametrize("header", ("X-Failing: 1", "X-Panic: 1"))
@pytest.mark.parametrize(
    "fields_of_request", ({}, {"n": 2}, {"stream": True}, {"stream": True, "n": 2})
)
def test_failing_middleware_returns_500_and_frees_its_slot(
    odd: RunningServer, header: str, fields_of_request: Mapping[str, Any]
) -> None:
    data = json.dumps({**CHAT, **fields_of_request}).encode()
    request = http_post(CHAT_PATH, data, "Content-Type: application/json", header)
    with Wire(odd.port) as wire:
        for _ in range(2):
            assert wire.send(request).answer().status == 500
    wait_for_value(_running, odd, equals=0)


def test_error_while_streaming_a_body_closes_the_connection(odd: RunningServer) -> None:
    with Wire(odd.port) as wire:
        wire.send(b"GET /odd/breaks-off HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.seconds_until_closed() < 10
    assert "a response ended early" in odd.log()


def test_error_while_closing_a_response_keeps_the_connection_open(odd: RunningServer) -> None:
    with Wire(odd.port) as wire:
        for _ in range(2):
            wire.send(b"GET /odd/close-fails HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert wire.answer().body == b"x"


def test_connection_headers_of_a_handler_are_ignored(odd: RunningServer) -> None:
    with Wire(odd.port) as wire:
        for _ in range(2):
            wire.send(b"GET /odd/hops HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = wire.answer()
            assert answer.body == b"x"
            assert "connection" not in answer.headers
            assert answer.headers["date"] != "today"
            assert "transfer-encoding" not in answer.headers


@pytest.mark.parametrize(("name", "status"), (("not-modified", 304), ("no-content", 204)))
def test_response_with_status_204_or_304_has_no_body(
    odd: RunningServer, name: str, status: int
) -> None:
    request = f"GET /odd/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with Wire(odd.port) as wire, wire.sock.makefile("rb") as received:
        wire.send(request * 2)
        for _ in range(2):
            assert received.readline().split()[1] == str(status).encode()
            while received.readline() != b"\r\n":
                pass


def test_truncated_body_returns_400_on_the_direct_and_the_general_path(pair: Pair) -> None:
    request = http_post(CHAT_PATH, json.dumps(CHAT).encode())[:-3]
    answers = []
    for server in (pair.direct, pair.general):
        with Wire(server.port) as wire:
            wire.send(request).sock.shutdown(socket.SHUT_WR)
            answers.append(wire.answer())
    assert [answer.status for answer in answers] == [400, 400]
    assert answers[0].body == answers[1].body


def test_request_duration_starts_with_the_arrival_of_the_head() -> None:
    request = http_post(CHAT_PATH, json.dumps(CHAT).encode())
    with running_server(env={"SIM_FAST_PATH": "true"}) as server, Wire(server.port) as wire:
        wire.send(request[:-3])
        time.sleep(0.7)
        assert wire.send(request[-3:]).answer().status == 200
        text = get(server.port, "/metrics").body.decode()
    seconds = re.search(r"^http_request_duration_highr_seconds_sum (\S+)$", text, re.MULTILINE)
    assert seconds is not None
    assert float(seconds[1]) > 0.65


def test_flask_extension_hooks_run_for_every_request(tmp_path: Path) -> None:
    (tmp_path / "hooked.py").write_text(HOOKED, "utf-8")
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", str(tmp_path), "hooked:app"]
    port = free_port()
    with running_command(command, port, {"SIM_HOST": "127.0.0.1", "SIM_PORT": str(port)}) as server:
        for body in (CHAT, {**CHAT, "stop": "e"}):
            assert post(port, body, CHAT_PATH).headers["x-seen"] == "yes"
        assert get(port, "/health").headers["x-seen"] == "yes"
        counted = requests_by_way(server.port)
        assert counted["direct"] == counted["fast"] == counted["probe"] == 0
