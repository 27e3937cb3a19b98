"""The matrix of docs/servers.md:

what clients and operators do, under each server that speaks WSGI.
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import pytest

from tests.hostile.raw_client import (
    Wire,
    aborts,
    ask,
    get,
    http_post,
    metric,
    post,
    running,
    wait_until,
)
from tests.hostile.waits import wait_for_running
from tests.running_server import ROOT, RunningServer
from tests.servers.starts import KINDS, served

PACE_S = 0.04
SETTINGS = {"SIM_MODEL": "m", "SIM_INTER_TOKEN_LATENCY": f"{PACE_S}s"}
LONG = 4000
"""Tokens that take longer than anybody waits here."""
CHAT = "/v1/chat/completions"
AT_ONCE = 50
MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]


ROWS = [
    pytest.param(name, marks=[getattr(pytest.mark, kind.need)] if kind.need else [])
    for name, kind in KINDS.items()
]


@pytest.fixture(scope="module", params=ROWS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Shared by the tests of a row, so each leaves it idle."""
    with served(kind, tmp_path_factory.mktemp("server"), SETTINGS) as running_server:
        yield running_server
        wait_for_running(running_server.port, 0)
        assert "Traceback" not in running_server.log()


def test_server_answers_a_chat(server: RunningServer) -> None:
    answer = post(server.port, {"model": "m", "messages": MESSAGES, "max_tokens": 5}, CHAT)
    assert (answer.status, answer.headers["content-length"]) == (200, str(len(answer.body)))
    assert answer.json()["usage"]["completion_tokens"] == 5
    refused = post(server.port, {"model": "other", "messages": MESSAGES}, CHAT)
    assert (refused.status, refused.json()["error"]["param"]) == (404, "model")


def test_server_streams_token_by_token(server: RunningServer) -> None:
    stream_by_token(server)


def stream_by_token(server: RunningServer) -> None:
    """Asserts that the tokens of a stream come one by one."""
    with Wire(server.port) as wire:
        wire.post(
            {
                "model": "m",
                "messages": MESSAGES,
                "max_tokens": 20,
                "ignore_eos": True,
                "stream": True,
            },
            CHAT,
        )
        with wire.begin() as response:
            came = [(time.monotonic(), line) for line in response if line.startswith(b"data: ")]
    texts = [line for _, line in came if b'"content":"' in line]
    assert len(texts) >= 20 and came[-1][1] == b"data: [DONE]\n"
    assert came[-1][0] - came[0][0] > 5 * PACE_S  # and not all at the end


def leave_stream(server: RunningServer) -> None:
    """A client takes the first event of a long stream and goes."""
    with Wire(server.port) as wire:
        wire.post(ask(max_tokens=LONG, stream=True))
        with wire.begin() as response:
            assert response.readline().startswith(b"data: ")


def test_client_disconnect_frees_the_slot_of_the_request(server: RunningServer, kind: str) -> None:
    """The place of a client that leaves is free: at the latest when the next token comes."""
    aborts_before = aborts(server.port)
    leave_stream(server)
    wait_until(lambda: running(server.port) == 0 and aborts(server.port) == aborts_before + 1)
    if KINDS[kind].sees_leaving:
        with Wire(server.port) as wire:
            wire.post(ask(max_tokens=LONG))
            time.sleep(2 * PACE_S)
        wait_until(lambda: running(server.port) == 0 and aborts(server.port) == aborts_before + 2)


def test_server_answers_fifty_concurrent_requests(server: RunningServer, kind: str) -> None:
    tokens, requests = (
        metric(server.port, f"vllm:{name}_total")
        for name in ("generation_tokens", "request_success")
    )

    def text(number: int) -> str:
        with Wire(server.port) as wire:
            events = wire.post(ask(max_tokens=10, temperature=0, stream=True)).events()
            return "".join(event["choices"][0]["text"] for event in events)

    begun_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as several:
        assert len(set(several.map(text, range(AT_ONCE)))) == 1
    if KINDS[kind].serves_at_once >= AT_ONCE:  # one after another they take more
        assert time.monotonic() - begun_s < AT_ONCE * 9 * PACE_S
    assert running(server.port) == 0
    assert metric(server.port, "vllm:generation_tokens_total") == tokens + 10 * AT_ONCE
    assert metric(server.port, "vllm:request_success_total") == requests + AT_ONCE


def broken_answer(server: RunningServer, stream: bool) -> tuple[bytes, bool]:
    """What comes of an answer that a rule breaks off, and whether its client can tell."""
    request = json.dumps(ask(max_tokens=40, stream=stream)).encode()
    came = b""
    headers = ("Content-Type: application/json", "X-Fault: disconnect;after=3")
    with Wire(server.port) as wire:
        wire.send(http_post("/v1/completions", request, *headers))
        try:
            while data := wire.sock.recv(65536):
                came += data
        except ConnectionResetError:
            return came, True
    head, _, body = came.partition(b"\r\n\r\n")
    if b"chunked" in head:
        return came, not body.endswith(b"0\r\n\r\n")
    content_length = re.search(rb"(?i)content-length: (\d+)", head)
    return came, content_length is not None and len(body) < int(content_length[1])


def test_stream_is_aborted_when_a_fault_closes_the_connection(
    server: RunningServer, kind: str
) -> None:
    came, is_broken = broken_answer(server, stream=True)
    assert (came.count(b"data: "), is_broken) == (3, KINDS[kind].breaks)


def test_disconnect_fault_aborts_a_non_streamed_response(
    server: RunningServer,
) -> None:
    came, is_broken = broken_answer(server, stream=False)
    assert is_broken and b"HTTP/1.1 200" in came


def test_servers_page_states_the_tested_behavior() -> None:
    lines = (ROOT / "docs" / "servers.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    for name, kind in KINDS.items():
        [row] = [row[1:] for row in cells if row[0] == name]
        chat, stream, disconnect, at_once, broken, reload = row
        assert (chat, stream) == ("yes", "yes")
        assert disconnect == ("at once" if kind.sees_leaving else "with the next token")
        assert (at_once == "one after another") is (kind.serves_at_once == 1)
        assert broken.startswith("is broken") is kind.breaks
        assert ("restart" in reload) is (kind.reload is None)


def test_reload_lets_running_requests_finish(server: RunningServer, kind: str) -> None:
    """What runs goes on to its end, and a new process serves what comes then.

    The last test of a row.
    """
    reload = KINDS[kind].reload
    if reload is None:
        return
    with Wire(server.port) as wire:
        events = wire.post(ask(max_tokens=30, stream=True)).events()
        next(events)
        server.process.send_signal(reload)
        assert len([*events]) == 29
    wait_until(lambda: is_new(server))
    assert post(server.port, ask()).status == 200


def is_new(server: RunningServer) -> bool:
    try:
        return "vllm:generation_tokens_total{" in (
            text := get(server.port, "/metrics").body.decode()
        ) and bool(re.search(r"^vllm:generation_tokens_total\{.*\} 0\.0$", text, re.M))
    except (OSError, HTTPException):
        return False
