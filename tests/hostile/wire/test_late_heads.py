"""Clients that never complete the head of a request, on all ports; idle clients are kept."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from tests.hostile.mooncake_pod import running_mooncake_pod
from tests.hostile.raw_client import Wire

CLIENT_TIMEOUT_S = 1.0
KEEP_ALIVE_S = 75.0
CLOSE_LIMIT_S = 20.0
"""Longest wait for the end of a connection on a busy machine, far below `KEEP_ALIVE_S`."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
HALF_HEADS = {
    "half a line": b"GET /hea",
    "half a head": HEALTH + b"X-Header: a",
    "long half head": HEALTH + b"X-Header: " + b"a" * 10_000,
    "bare line feed": b"GET /health HTTP/1.1\nHost: a\n",
    "start of HTTP/2": HTTP2_PREFACE[:3],
}
HALF_HTTP2 = {
    "half a preface": HTTP2_PREFACE[:20],
    "preface alone": HTTP2_PREFACE,
    "half a frame": HTTP2_PREFACE + SETTINGS + b"\0\0\x10\1",
    "half a header block": HTTP2_PREFACE + SETTINGS + b"\0\0\1\1\0\0\0\0\1\x83",
}


class Ports(NamedTuple):
    """Of a prefill pod of Mooncake: its main port, and the port of its bootstrap server."""

    main: int
    bootstrap: int


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with running_mooncake_pod(KEEP_ALIVE_S, CLIENT_TIMEOUT_S) as pod:
        yield Ports(pod.server.port, pod.bootstrap_port)


@pytest.mark.parametrize("half", HALF_HEADS.values(), ids=HALF_HEADS)
def test_an_incomplete_head_ends_after_the_client_timeout(ports: Ports, half: bytes) -> None:
    for port in ports:
        with Wire(port) as wire:
            wire.send(half).seconds_until_closed(CLOSE_LIMIT_S)


@pytest.mark.parametrize("half", HALF_HTTP2.values(), ids=HALF_HTTP2)
def test_an_incomplete_start_of_http2_ends_after_the_client_timeout(
    ports: Ports, half: bytes
) -> None:
    with Wire(ports.main) as wire:
        wire.send(half).seconds_until_closed(CLOSE_LIMIT_S)


def test_a_head_that_comes_line_by_line_ends_after_the_client_timeout(ports: Ports) -> None:
    for port in ports:
        start_s = time.monotonic()
        with Wire(port) as wire, suppress(OSError):
            wire.send(HEALTH)
            wire.sock.settimeout(0.1)
            while time.monotonic() - start_s < CLOSE_LIMIT_S:
                with suppress(TimeoutError):
                    assert wire.sock.recv(1) == b""
                    break
                wire.send(b"X: y\r\n")
        assert time.monotonic() - start_s < CLOSE_LIMIT_S


def test_an_idle_connection_is_kept_longer_than_the_client_timeout(ports: Ports) -> None:
    paths = {ports.main: b"/health", ports.bootstrap: b"/query"}
    for port, path in paths.items():
        request = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path
        with Wire(port) as wire:
            for _ in range(2):
                assert wire.send(request).answer().status == 200
                time.sleep(CLIENT_TIMEOUT_S + 1)
            wire.send(request[:10])
            time.sleep(CLIENT_TIMEOUT_S / 4)  # the time of a head begins with its first byte
            assert wire.send(request[10:]).answer().status == 200
