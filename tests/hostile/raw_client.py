"""One connection to a server, byte by byte: clients that behave badly need no client library."""

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Self

COMPLETIONS = "/v1/completions"
PATIENCE_S = 20.0
"""Longest wait for anything: long enough for a busy machine, short enough to fail a test."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(**fields: Any) -> dict[str, Any]:
    """A completion request whose reply has exactly `max_tokens` tokens (1 when not given)."""
    return {"prompt": "Hello there", "max_tokens": 1, "ignore_eos": True, **fields}


def http_post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """The bytes of a POST; `headers` ("Name:

    value") replace the content type, a length is always sent.
    """
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += headers or ("Content-Type: application/json",)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Wire:
    """A client socket. `with` closes it."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        try:
            self.sock.connect(("127.0.0.1", port))
        except OSError:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> Self:
        self.sock.sendall(data)
        return self

    def post(self, body: Any, path: str = COMPLETIONS, version: str = "1.1") -> Self:
        """Send `body` as JSON; read the answer with `answer` or `events`."""
        return self.send(http_post(path, json.dumps(body).encode(), version=version))

    def answer(self) -> Whole:
        """The whole answer. HTTPException when it is cut short."""
        with closing(self.begin()) as response:
            body = response.read()
            return Whole(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                body,
            )

    def begin(self) -> HTTPResponse:
        """The answer once its headers are there; the caller closes it."""
        response = HTTPResponse(self.sock, method="POST")
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        return response

    def events(self) -> Iterator[Any]:
        """The events of a stream as they come, `[DONE]` left out.

        HTTPException unless it ends well.
        """
        with closing(self.begin()) as response:
            assert response.status == 200, response.read()
            done = False
            for line in response:
                if line == b"data: [DONE]\n":
                    done = True
                elif line.startswith(b"data: "):
                    assert not done
                    yield json.loads(line[6:])
            if not done:
                raise HTTPException("the stream ended without [DONE]")

    def close(self) -> None:
        """Leave with a FIN."""
        self.sock.close()

    def reset(self) -> None:
        """Leave with a RST instead of a FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def seconds_until_closed(self, limit_s: float = PATIENCE_S) -> float:
        """How long the server keeps the connection; what it sends meanwhile is dropped.

        TimeoutError.
        """
        start = time.monotonic()
        self.sock.settimeout(limit_s)
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic() - start


def post(port: int, body: Any, path: str = COMPLETIONS) -> Whole:
    """One request on a connection of its own."""
    with Wire(port) as wire:
        return wire.post(body, path).answer()


def get(port: int, path: str) -> Whole:
    """One GET on a connection of its own."""
    with Wire(port) as wire:
        return wire.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).answer()


def refuses(port: int) -> bool:
    """Whether nothing listens on `port`."""
    try:
        Wire(port).sock.close()
    except ConnectionRefusedError:
        return True
    return False


def requests_by_way(port: int) -> dict[str, float]:
    """Returns how many requests each way has served before this one."""
    text = get(port, "/metrics").body.decode()
    pairs = re.findall(r'^understudy_requests_total\{way="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {way: float(count) for way, count in pairs}


def metric(port: int, name: str, **labels: str) -> float:
    """Sum of the samples of `name` that carry `labels`."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = get(port, "/metrics").body.decode().splitlines()
    samples = [
        line
        for line in lines
        if line.startswith((name + "{", name + " ")) and all(label in line for label in wanted)
    ]
    assert samples, f"no {name} with {labels}"
    return sum(float(line.rpartition(" ")[2]) for line in samples)


def running(port: int) -> float:
    return metric(port, "vllm:num_requests_running")


def waiting(port: int) -> float:
    return metric(port, "vllm:num_requests_waiting")


def aborts(port: int) -> float:
    return metric(port, "understudy_aborted_requests_total")


def wait_until(holds: Callable[[], bool], limit_s: float = PATIENCE_S) -> float:
    """Seconds until `holds()`; AssertionError when it does not within `limit_s`."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < limit_s, "it did not come to that in time"
        time.sleep(0.005)
    return time.monotonic() - start


def wait_for_value(
    read: Callable[..., object],
    *arguments: object,
    equals: object = True,
    limit_s: float = PATIENCE_S,
) -> float:
    """Seconds until `read(*arguments)` returns `equals`.

    AssertionError when it does not within `limit_s`.
    """

    def has_value() -> bool:
        return bool(read(*arguments) == equals)

    return wait_until(has_value, limit_s)


def is_error(whole: Whole, status: int, kind: str, param: str | None = None) -> None:
    """Assert that `whole` is vLLM's error body for `status`."""
    assert whole.status == status, whole
    assert whole.headers["content-type"] == "application/json"
    error = whole.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]
