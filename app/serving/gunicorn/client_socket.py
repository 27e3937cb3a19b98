"""Replacements for gunicorn's work on a client's socket: accepting, answering and closing.

gunicorn would read an unread rest of a body, of any length, before the next request, a kilobyte at a time.
Here a short rest is read; after a long rest the connection lingers and closes, and a client that still sends
can read the answer (RFC 9112 9.6).
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socket import SHUT_WR
from typing import TYPE_CHECKING, Any

import gevent
from gevent.server import StreamServer
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader
from gunicorn.http.wsgi import Response

from app.serving.api.responder import EventStream
from app.serving.gunicorn.connections import FastConnection
from app.serving.gunicorn.fair_turns import FairTurns, Share
from app.serving.gunicorn.heads import HOST, default_head
from app.serving.http.connection import LAST_CHUNK
from app.serving.http.response import AnswerBody

if TYPE_CHECKING:
    from gevent.socket import socket as GeventSocket
    from gunicorn.config import Config
    from gunicorn.http.message import Request
    from gunicorn.http.parser import RequestParser

PARSED_BYTES = 8192
"""Most bytes per read while gunicorn searches for the end of a head or chunk."""
PART_BYTES = 4096
"""Bytes per parsed part: one-byte chunks in a part this long take 4 ms."""
LOOK_AGAIN_S = 0.05
"""Longest time until accepting is tried again after a limit was reached, in seconds."""
RECORD_BYTES = 1 << 14
"""Most bytes of a TLS record."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TELL_AGAIN_S = 60.0
"""Seconds between two log lines about missing file descriptors or memory for connections."""
log = logging.getLogger(__name__)


class ClientServer(StreamServer):  # type: ignore[misc]
    """Hands each new connection to `accept` in the hub. While `is_full`, clients wait in the backlog."""

    max_delay = LOOK_AGAIN_S

    def __init__(
        self,
        listener: GeventSocket,
        accept: Callable[[GeventSocket, object], None],
        is_full: Callable[[], bool],
    ) -> None:
        super().__init__(listener, handle=accept, spawn=None)
        self._is_full = is_full
        self._silent_until_s = 0.0

    def do_read(self) -> Any:
        """Returns the next connection; None without one. GreenletExit: gevent tries again after a delay."""
        if self._is_full():
            raise gevent.GreenletExit
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if (now_s := time.monotonic()) >= self._silent_until_s:
                self._silent_until_s = now_s + TELL_AGAIN_S
                log.error("clients wait, no more connections can be accepted: %s", error.strerror)
            raise gevent.GreenletExit from None

    def do_handle(self, *args: Any) -> None:
        """Leaves closing the connection to `accept`."""
        self.handle(*args)


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


class GeneralResponse(Response):  # type: ignore[misc]
    """gunicorn's response, written by the transport of its connection: head and body leave together."""

    def __init__(self, req: Request, sock: GeventSocket, cfg: Config, connection: FastConnection) -> None:
        super().__init__(req, sock, cfg)
        self.headers_sent: bool = False
        self._connection = connection

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        self.headers_sent = True
        major, minor = self.req.version
        head = default_head(
            self.status, int(time.time()), self.should_close(), self.chunked, f"HTTP/{major}.{minor}"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        self._connection.put(f"{head}\r\n".encode("latin-1"))

    def _emit_body(self, data: bytes) -> None:
        self._connection.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def send(self, body: Iterable[bytes]) -> None:
        """Sends the answer: by pieces, or as a stream that leaves without this greenlet."""
        answer = body.response if isinstance(body, AnswerBody) else None
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


def closes(connection: Iterable[str]) -> bool:
    """True if a member of the Connection fields is "close" (RFC 9110 7.6.1)."""
    return any(member.strip(" \t").lower() == "close" for value in connection for member in value.split(","))


def check_head(req: Request) -> None:
    """Checks a request of gunicorn's parser, and applies its `Connection: close`.

    InvalidHeader (status 400): Host is invalid, or missing in HTTP/1.1.
    """
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if (req.version >= (1, 1)) if host is None else not HOST.fullmatch(host):
        raise InvalidHeader("HOST", req=req)
    if closes(value for name, value in req.headers if name == "CONNECTION"):
        req.force_close()


LITTLE_BYTES = 1 << 17
LITTLE_S = 0.5
"""Most bytes of an unread body, and seconds, that are spent to keep a connection open."""
LINGER_BYTES = 1 << 20
LINGER_S = 1.0
"""Most bytes, and seconds, that are read and discarded before a connection is closed."""


def has_much_unread(req: Request) -> bool:
    """True if the unread body of gunicorn's `req` is chunked, or above LITTLE_BYTES."""
    reader = getattr(getattr(req, "body", None), "reader", None)
    if isinstance(reader, LengthReader):
        return bool(reader.length > LITTLE_BYTES)
    return isinstance(reader, ChunkedReader) and reader.parser is not None


def discard_body(parser: RequestParser) -> bool:
    """Reads a short rest of a body; False when the rest is too long, or does not come in time."""
    if has_much_unread(parser.mesg):
        return False
    return bool(parser.finish_body(time.monotonic() + LITTLE_S, LITTLE_BYTES + 1))


def linger(client: GeventSocket) -> None:
    thrown_away = 0
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        client.shutdown(SHUT_WR)
        while thrown_away < LINGER_BYTES and (data := client.recv(LITTLE_BYTES)):
            thrown_away += len(data)
