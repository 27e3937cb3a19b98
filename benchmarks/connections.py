"""Raw keep-alive connections and the bytes of a request."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.replies import WholeReply

HOST = "127.0.0.1"
PATH = "/v1/chat/completions"
TIMEOUT_S = 30.0
RECEIVE = 65536


def chat(tokens: int, stream: bool, text: str = "hi") -> bytes:
    """A whole HTTP request for a short chat of at most (a stream: exactly) `tokens` tokens."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    if stream:
        body |= {"stream": True, "ignore_eos": True}
    return request(PATH, json.dumps(body, separators=(",", ":")).encode())


def completion(tokens: int, text: str) -> bytes:
    """A whole HTTP request for a completion of at most `tokens` tokens."""
    body = {"model": "m", "prompt": text, "max_tokens": tokens}
    return request("/v1/completions", json.dumps(body, separators=(",", ":")).encode())


def request(path: str, body: bytes) -> bytes:
    """A whole HTTP request with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def get(path: str) -> bytes:
    """A whole HTTP request for a page."""
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


@contextmanager
def opened(port: int, count: int) -> Iterator[list[socket.socket]]:
    """`count` connections to a local server, opened one after the other before anything is
    measured.
    """
    _allow_files(count + 64)
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.create_connection((HOST, port), TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append(sock)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """Body of the answer to one request. OSError, or RefusedError when the status is not 200."""
    reply = WholeReply()
    sock.sendall(request)
    while not reply.done:
        received = sock.recv(RECEIVE)
        if not received:
            raise ConnectionResetError("closed in the middle of an answer")
        reply.feed(received)
    return reply.body
