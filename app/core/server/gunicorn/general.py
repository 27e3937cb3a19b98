"""Requests that gunicorn parses and Flask answers: their bytes, heads and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from socket import SHUT_WR
from typing import TYPE_CHECKING

import gevent.socket
from gunicorn.http import wsgi
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader, UnsupportedTransferCoding

from app.core.api.responder import EventStream
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.heads import HOST
from app.core.server.http.response import Response
from app.core.server.http.stream_transport import LAST_CHUNK

if TYPE_CHECKING:
    from gunicorn.config import Config
    from gunicorn.http.message import Request

MAX_DISCARDED_BYTES = 1 << 17
"""Most bytes of an unread body that are read to keep a connection open."""
LINGER_BYTES = 1 << 20
"""Most bytes that are read and discarded before a connection is closed (RFC 9112 9.6)."""
LINGER_S = 1.0
"""Most seconds that are spent on reading and discarding before a connection is closed."""
MAX_PARSED_BYTES = 8192
"""Most bytes per read while gunicorn searches for the end of a head or chunk."""
PART_BYTES = 4096
"""Bytes per parsed part: one-byte chunks in a part this long take 4 ms."""
MAX_RECORD_BYTES = 1 << 14
"""Most bytes of a TLS record."""


class FairSocket:
    """A client's socket for gunicorn's parser; returns `data`, which was read before, first.

    Bytes come in small parts, and other connections may run after each part.
    """

    def __init__(self, connection: FastConnection, data: bytes) -> None:
        self._connection = connection
        self.data = data
        self.gettimeout = connection.client.gettimeout
        self.settimeout = connection.client.settimeout

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes, after a turn; none at the end of the connection."""
        if size <= MAX_PARSED_BYTES:  # gunicorn parses a head or chunk of unknown length
            size = PART_BYTES
        # At least a whole record of TLS: the hub would not see bytes that were decrypted and left.
        connection = self._connection
        data = self.data or connection.client.recv(max(size, MAX_RECORD_BYTES))
        self.data = data[size:]
        connection.path.turns.wait(connection.cost)
        return data[:size]


class GeneralResponse(wsgi.Response):  # type: ignore[misc]
    """gunicorn's response, written by the transport of its connection.

    Head and body are sent together.
    """

    def __init__(
        self,
        req: Request,
        sock: gevent.socket.socket,
        cfg: Config,
        connection: FastConnection,
        has_more: Callable[[], bool],
    ) -> None:
        super().__init__(req, sock, cfg)
        self.headers_sent: bool = False
        self._connection = connection
        self._has_more = has_more

    def send_headers(self) -> None:
        """Sends the head with the next bytes of the body."""
        if not self.headers_sent:
            self.headers_sent = True
            path = self._connection.path
            if not path.is_open and path.closes_after(self._has_more()):
                self.force_close()
            lines = self.default_headers()
            lines += [f"{name}: {value}\r\n" for name, value in self.headers]
            self._connection.put(("".join(lines) + "\r\n").encode("latin-1"))

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.send(data)

    def send(self, body: Iterable[bytes]) -> None:
        """Sends the answer: by pieces, or as a stream that the hub sends without this greenlet."""
        answer = body if isinstance(body, Response) else None
        try:
            if answer is not None and isinstance(answer.body, EventStream) and self.chunked:
                self.send_headers()
                self._connection.send_stream(answer.body)
                return
            for piece in body:
                self.write(piece)
            self.send_headers()
            self._connection.send(LAST_CHUNK if self.chunked else b"")
        finally:
            if answer is not None:
                self.sent = answer.bytes_sent


def check_head(req: Request) -> None:
    """Checks a request of gunicorn's parser, and honors `close` within a list (RFC 9110 7.6.1).

    Raises:
        InvalidHeader: Host is invalid, or missing in HTTP/1.1 (status 400).
        UnsupportedTransferCoding: the body has a coding other than `chunked` (status 501, RFC 9112
            section 6.1). gunicorn accepts `gzip, chunked`, and would not decompress the body.
    """
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if host is None and req.version >= (1, 1):
        raise InvalidHeader("HOST", req=req)
    if host is not None and not HOST.fullmatch(host):
        raise InvalidHeader("HOST", req=req)
    codings = _joined_values(req, "TRANSFER-ENCODING")
    if codings and codings.lower() != "chunked":
        raise UnsupportedTransferCoding(codings)
    members = _joined_values(req, "CONNECTION").lower().split(",")
    if any(member.strip(" \t") == "close" for member in members):
        req.force_close()


def _joined_values(req: Request, header: str) -> str:
    return ",".join(value for name, value in req.headers if name == header)


def has_much_unread(req: Request) -> bool:
    """True if the unread body of `req` is chunked, or above MAX_DISCARDED_BYTES."""
    reader = getattr(getattr(req, "body", None), "reader", None)
    if isinstance(reader, LengthReader):
        return bool(reader.length > MAX_DISCARDED_BYTES)
    return isinstance(reader, ChunkedReader) and reader.parser is not None


def linger(client: gevent.socket.socket) -> None:
    """Ends the sending side, and discards what the client still sends, within limits.

    Closing with unread bytes would reset the connection, and the client might lose the answer.
    """
    discarded_bytes = 0
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        client.shutdown(SHUT_WR)
        while discarded_bytes < LINGER_BYTES:
            data = client.recv(MAX_DISCARDED_BYTES)
            if not data:
                return
            discarded_bytes += len(data)
