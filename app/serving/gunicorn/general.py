"""Requests that gunicorn parses and Flask answers: their bytes, heads and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from socket import SHUT_WR
from typing import TYPE_CHECKING

import gevent
from gunicorn.http import wsgi
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader, UnsupportedTransferCoding

from app.serving.api.responder import EventStream
from app.serving.gunicorn.connections import FastConnection
from app.serving.gunicorn.fair_turns import FairTurns, Share
from app.serving.gunicorn.heads import HOST
from app.serving.http.connection import LAST_CHUNK
from app.serving.http.response import Response

if TYPE_CHECKING:
    from gevent.socket import socket as GeventSocket
    from gunicorn.config import Config
    from gunicorn.http.message import Request

LITTLE_BYTES = 1 << 17
"""Most bytes of an unread body that are read to keep a connection open."""
LINGER_BYTES = 1 << 20
LINGER_S = 1.0
"""Most bytes, and seconds, that are read and discarded before a connection is closed (RFC 9112
9.6).
"""
PARSED_BYTES = 8192
"""Most bytes per read while gunicorn searches for the end of a head or chunk."""
PART_BYTES = 4096
"""Bytes per parsed part: one-byte chunks in a part this long take 4 ms."""
RECORD_BYTES = 1 << 14
"""Most bytes of a TLS record."""


class FairSocket:
    """A client's socket for gunicorn's parser; `data`, read earlier, comes first.

    Bytes come in small parts, and other connections may run after each part.
    """

    __slots__ = ("_client", "_share", "_turns", "data", "gettimeout", "settimeout")

    def __init__(self, client: GeventSocket, data: bytes, turns: FairTurns, share: Share) -> None:
        self._client, self.data, self._turns, self._share = client, data, turns, share
        self.gettimeout, self.settimeout = client.gettimeout, client.settimeout

    def recv(self, size: int) -> bytes:
        if size <= PARSED_BYTES:  # gunicorn parses a head or chunk of unknown length
            size = PART_BYTES
        # At least a whole record of TLS: the hub would not see bytes that were decrypted and left.
        data = self.data or self._client.recv(max(size, RECORD_BYTES))
        data, self.data = data[:size], data[size:]
        self._turns.wait(self._share)
        return data


class GeneralResponse(wsgi.Response):  # type: ignore[misc]
    """gunicorn's response, written by the transport of its connection:

    head and body leave together.
    """

    def __init__(
        self,
        req: Request,
        sock: GeventSocket,
        cfg: Config,
        connection: FastConnection,
        has_more: Callable[[], bool],
    ) -> None:
        super().__init__(req, sock, cfg)
        self.headers_sent: bool = False
        self._connection = connection
        self._has_more = has_more

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.headers_sent = True
            path = self._connection.path
            if not path.is_open and path.closes_after(self._has_more()):
                self.force_close()
            lines = [
                *self.default_headers(),
                *(f"{name}: {value}\r\n" for name, value in self.headers),
            ]
            self._connection.put(("".join(lines) + "\r\n").encode("latin-1"))

    def _emit_body(self, data: bytes) -> None:
        self._connection.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def send(self, body: Iterable[bytes]) -> None:
        """Sends the answer: by pieces, or as a stream that leaves without this greenlet."""
        answer = body if isinstance(body, Response) else None
        try:
            if answer is not None and isinstance(answer.body, EventStream) and self.chunked:
                self.send_headers()
                self._connection.send_stream(answer.body)
                return
            for item in body:
                self.write(item)
            self.send_headers()
            self._connection.send(LAST_CHUNK if self.chunked else b"")
        finally:
            if answer is not None:
                self.sent = answer.bytes_sent


def check_head(req: Request) -> None:
    """Checks a request of gunicorn's parser, and applies a "close" among others (RFC 9110 7.6.1).

    Raises:
        InvalidHeader: Host is invalid, or missing in HTTP/1.1 (status 400).
        UnsupportedTransferCoding: the body has a coding other than `chunked` (status 501, RFC 9112
            section 6.1). gunicorn accepts `gzip, chunked`, and would not decompress the body.
    """
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if (req.version >= (1, 1)) if host is None else not HOST.fullmatch(host):
        raise InvalidHeader("HOST", req=req)
    codings = ",".join(value for name, value in req.headers if name == "TRANSFER-ENCODING")
    if codings and codings.lower() != "chunked":
        raise UnsupportedTransferCoding(codings)
    members = (
        ",".join(value for name, value in req.headers if name == "CONNECTION").lower().split(",")
    )
    if any(member.strip(" \t") == "close" for member in members):
        req.force_close()


def has_much_unread(req: Request) -> bool:
    """True if the unread body of gunicorn's `req` is chunked, or above LITTLE_BYTES."""
    reader = getattr(getattr(req, "body", None), "reader", None)
    if isinstance(reader, LengthReader):
        return bool(reader.length > LITTLE_BYTES)
    return isinstance(reader, ChunkedReader) and reader.parser is not None


def linger(client: GeventSocket) -> None:
    thrown_away = 0
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        client.shutdown(SHUT_WR)
        while thrown_away < LINGER_BYTES and (data := client.recv(LITTLE_BYTES)):
            thrown_away += len(data)
