"""Requests of hostile size: each gets its right answer, and the worker lives on, answering others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.hostile.raw_client import COMPLETIONS, Whole, Wire, ask, get, http_post, is_error, post
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

CHAT = "/v1/chat/completions"
JSON = "Content-Type: application/json"
GIGABYTE = 1 << 30
HELLO = [{"role": "user", "content": "a"}]
PIECE = b" " * 65_536


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = ("--max-model-len", "300000", "--max-request-body-size-mb", "8", "--admin-key", "secret")
    with stressed_server(*flags) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/ping", (), 200), ("/admin/config", ("X-Admin-Key: wrong",), 401), (CHAT, (), 413)],
)
def test_a_gigabyte_that_nobody_reads_ends_its_connection(
    server: RunningServer, path: str, headers: tuple[str, ...], status: int
) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", JSON, *headers, f"Content-Length: {GIGABYTE}"]
    with Wire(server.port) as wire:
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n" + PIECE)
        assert wire.answer().status == status
        sent = 0
        with suppress(ConnectionError):  # the server lingers a moment, and then takes no more
            while sent < GIGABYTE // 4:
                wire.send(PIECE)
                sent += len(PIECE)
        assert sent < GIGABYTE // 4
    assert get(server.port, "/health").status == 200


def test_hundreds_of_thousands_of_one_byte_chunks_are_one_body(server: RunningServer) -> None:
    body = json.dumps(ask()).encode().ljust(400_000)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Wire(server.port) as wire:
        wire.sock.settimeout(120)
        wire.send(head.encode())
        for start in range(0, len(body), 20_000):
            wire.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body[start : start + 20_000]))
            if start == 200_000:
                assert get(server.port, "/health").status == 200
        wire.send(b"0\r\n\r\n")
        assert wire.answer().status == 200


def test_a_huge_whole_answer_is_refused_and_names_what_is_too_much(server: RunningServer) -> None:
    huge = {"messages": HELLO, "n": 128, "max_tokens": 40_000, "ignore_eos": True}
    answer = posted(server, huge | {"logprobs": True, "top_logprobs": 20})
    is_error(answer, 400, "BadRequestError")
    assert "n=128" in answer.json()["error"]["message"]


def test_a_huge_stream_begins_at_once_and_can_be_left(server: RunningServer) -> None:
    huge = {"messages": HELLO, "n": 128, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    body = json.dumps(huge | {"logprobs": True, "top_logprobs": 20}).encode()
    with Wire(server.port) as wire:
        wire.send(http_post(CHAT, body))
        received = 0
        while received < 2_000_000:
            received += len(wire.sock.recv(1 << 20))
        assert get(server.port, "/health").status == 200
    assert post(server.port, ask()).status == 200


def test_schemas_without_end_are_remembered_within_their_bound(server: RunningServer) -> None:
    for number in range(300):
        schema = {"type": "object", "properties": {f"field{number}" * 50: {"type": "string"}}}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        assert posted(server, {"messages": HELLO, "max_tokens": 1, "response_format": form}).status == 200
    with Wire(server.port) as wire:
        wire.send(b"GET /admin/memory HTTP/1.1\r\nHost: localhost\r\nX-Admin-Key: secret\r\n\r\n")
        kept = wire.answer().json()["caches"]["schemas"]
    assert 0 < kept["size_bytes"] <= kept["limit_bytes"]


def posted(server: RunningServer, body: dict[str, Any]) -> Whole:
    with Wire(server.port) as wire:
        wire.sock.settimeout(120)
        return wire.send(http_post(CHAT, json.dumps(body).encode())).answer()
