"""Small real servers on loopback that stand in for a pod, an indexer and a client."""

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import gevent
from gevent.event import Event
from gevent.server import StreamServer
from urllib3 import HTTPResponse

from app.shared.http_client import JSON, HttpConnection
from app.shared.relay import server_of
from tests.running_server import free_port

PATIENCE_S = 5.0


@contextmanager
def serving(application: Callable[..., Any]) -> Iterator[str]:
    """The address of a WSGI application that is served in the block."""
    server = server_of(application)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=1)


class Pod:
    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        self.asked.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], body))
        self.headers.append(
            {key: value for key, value in environ.items() if key.startswith("HTTP_")}
        )
        answer = self.name.encode()
        start_response("201 Created", [("Content-Length", str(len(answer))), ("x-pod", self.name)])
        return [answer]


class Talker:
    """A server that speaks bytes:

    it sends `head` when a request has come, then waits for the end.
    """

    def __init__(self, head: bytes, hang_up: bool = False) -> None:
        self.client_left = Event()
        self._head = head
        self._hang_up = hang_up

    def __call__(self, sock: socket.socket, address: object) -> None:
        read_request(sock)
        if self._head:
            sock.sendall(self._head)
        if self._hang_up:
            return
        while sock.recv(4096):
            pass
        self.client_left.set()


@contextmanager
def talking(talker: Talker) -> Iterator[str]:
    """The address of a `Talker`."""
    server = StreamServer(("127.0.0.1", 0), talker)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=1)


def read_request(sock: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += sock.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(sizes[0].partition(b":")[2]) - len(body) if sizes else 0
    while left > 0:
        left -= len(sock.recv(65536))
    return received


class Indexer:
    """Answers every question for scores with `answer`, a body or a status."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        self.asked.append((environ["PATH_INFO"], json.loads(environ["wsgi.input"].read())))
        if isinstance(self.answer, int):
            start_response(f"{self.answer} Bad", [("Content-Length", "0")])
            return [b""]
        start_response("200 OK", [])
        return [self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()]


@contextmanager
def posted(
    address: str, body: object, path: str = "/v1/completions", **headers: str
) -> Iterator[HTTPResponse]:
    """The answer to a request, unread; the connection ends with the block."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with closing(HttpConnection(address, PATIENCE_S)) as connection:
        connection.request("POST", path, text, {**JSON, **headers})
        with closing(connection.getresponse()) as response:
            yield response


def eventually(condition: Callable[[], object]) -> None:
    """Let others run until it holds; AssertionError after `PATIENCE_S`."""
    with gevent.Timeout(PATIENCE_S, AssertionError("it never came about")):
        while not condition():
            gevent.sleep(0.001)


def unused_address() -> str:
    return f"127.0.0.1:{free_port()}"
