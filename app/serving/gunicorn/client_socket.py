"""Replacements for gunicorn's work on a client's socket: accepting, answering and closing.

gunicorn would read an unread rest of a body, of any length, before the next request, a kilobyte at a time.
Here a short rest is read; after a long rest the connection lingers and closes, and a client that still sends
can read the answer (RFC 9112 9.6).
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from socket import SHUT_WR
from typing import TYPE_CHECKING, Any

import gevent
from gevent.server import StreamServer
from gevent.socket import socket
from gunicorn import SERVER
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader
from gunicorn.http.wsgi import Response

from app.serving.gunicorn.fair_turns import FairTurns, Share

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
SENT_BYTES = 1 << 16
"""Bytes per send; the write timeout applies to each send."""
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
        if self.data:
            data, self.data = self.data[:size], self.data[size:]
        else:
            data = self._client.recv(size)
        self._turns.wait(self._share)
        return data


class JoinedResponse(Response):  # type: ignore[misc]
    """Delays the head until the first bytes of a body of known length; other answers send it at once.

    A client that takes no bytes for `write_timeout_s` is cut off. Code that writes a chunked body past the
    server may write the last chunk, too, and then calls `ended`.
    """

    def __init__(
        self, req: Request, sock: GeventSocket, cfg: Config, write_timeout_s: float | None = None
    ) -> None:
        super().__init__(req, sock, cfg)
        self.headers_sent: bool = False
        self._write_timeout_s = write_timeout_s
        self._head = b""
        self._has_ended = False

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        self.headers_sent = True
        major, minor = self.req.version
        head = default_head(
            self.status, int(time.time()), self.should_close(), self.chunked, f"HTTP/{major}.{minor}"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        self._head = f"{head}\r\n".encode("latin-1")
        if not self.response_length:
            self._send(b"")

    def _emit_body(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def _send(self, data: bytes) -> None:
        """Sends the head, if it is due, and `data`: first by the native socket, since gevent's queries
        buffer sizes before sending.

        Raises OSError when the client takes no bytes for too long.
        """
        data, self._head, sent = self._head + data, b"", 0
        if type(self.sock) is socket:
            with suppress(BlockingIOError):
                sent = self.sock._sock.send(data)
        for start in range(sent, len(data), SENT_BYTES):
            with gevent.Timeout(self._write_timeout_s, OSError(errno.EPIPE, "the client takes no bytes")):
                self.sock.sendall(memoryview(data)[start : start + SENT_BYTES])

    def ended(self) -> None:
        self._has_ended = True

    def close(self) -> None:
        if not self._has_ended:
            super().close()
        if self._head:
            self._send(b"")


@lru_cache(maxsize=16)
def default_head(status: str, second: int, closes: bool, chunked: bool, version: str = "HTTP/1.1") -> str:
    """Returns gunicorn's status line and headers before the application's headers, at a Unix second."""
    connection, date = "close" if closes else "keep-alive", _http_date(second)
    lines = f"{version} {status}\r\nServer: {SERVER}\r\nDate: {date}\r\nConnection: {connection}\r\n"
    return lines + "Transfer-Encoding: chunked\r\n" if chunked else lines


@lru_cache(maxsize=2)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)  # as RFC 9110 section 5.6.7 has it


HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:\d*)?", re.ASCII)
"""A valid Host (RFC 9112 section 3.2): a name or address, which is required, and perhaps a port."""


def closes(connection: Iterable[str]) -> bool:
    """True if a member of the Connection fields is "close" (RFC 9110 7.6.1)."""
    return any(member.strip(" \t").lower() == "close" for value in connection for member in value.split(","))


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, complete or not, ends without a carriage return (RFC 9112 section 2.2)."""
    return data.count(b"\n") != data.count(b"\r\n")


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
