"""What gunicorn does at the socket of a client, done otherwise: accepting, answering, and ending.

* `ClientServer` accepts without a greenlet per connection: whoever gets one decides what waits for it. When
  the process has no file descriptor left, clients wait in the backlog, and one line tells of it.
* `FairSocket` gives gunicorn's parser small parts, with a fair turn after each.
* `JoinedResponse` sends head and body of a whole answer in one system call.
* Rules of RFC 9112 for heads that gunicorn's parser leaves out, and that both ways keep (`check_head`).
* What becomes of the rest of a request's body that nobody read: gunicorn reads it to its end before the next
  request, a kilobyte at a time, however long it is. Here a little is read; after more, the connection is
  closed, lingering a moment, so that a client that still sends gets to read the answer (RFC 9112 9.6).
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
from typing import Any

import gevent
from gevent.server import StreamServer
from gevent.socket import socket
from gunicorn import SERVER
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader
from gunicorn.http.wsgi import Response

from app.server.fair_turns import FairTurns, Share

PARSED_BYTES = 8192
"""Most bytes that gunicorn reads at once where it looks for the end of a head or of a chunk."""
PART_BYTES = 4096
"""Bytes that are parsed at once: chunks of one byte take 4 ms then."""
LOOK_AGAIN_S = 0.05
"""How long nothing is accepted while as many connections are open as may be."""
SENT_BYTES = 1 << 16
"""A client that takes so many has taken some."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TELL_AGAIN_S = 60.0
"""How long nothing more is told of connections for which the process has no room."""
log = logging.getLogger(__name__)


class ClientServer(StreamServer):  # type: ignore[misc]
    """Hands each new connection to `accept` in the hub. While `is_full`, clients wait in the backlog."""

    def __init__(
        self, listener: Any, accept: Callable[[Any, Any], None], is_full: Callable[[], bool]
    ) -> None:
        super().__init__(listener, handle=accept, spawn=None)
        self._is_full = is_full
        self._silent_until_s = 0.0

    def full(self) -> bool:
        is_full = self._is_full()
        if is_full:
            self._accept_later()
        return is_full

    def do_read(self) -> Any:
        """The next connection; none when there is none, or no room for one."""
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.stop_accepting()
            self._accept_later()
            self._tell(error)
            return None

    def _tell(self, error: OSError) -> None:
        now_s = time.monotonic()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + TELL_AGAIN_S
            log.error("clients wait, no more connections can be accepted: %s", error.strerror)

    def _accept_later(self) -> None:
        if self.started:
            timer = self.loop.timer(LOOK_AGAIN_S)
            timer.start(self._accept_again, timer)

    def _accept_again(self, timer: Any) -> None:
        timer.close()
        if self.started:
            self.start_accepting()

    def do_handle(self, *args: Any) -> None:
        """`accept` sees to it that the connection is closed."""
        self.handle(*args)


class FairSocket:
    """A client's socket as gunicorn's parser reads it, behind `data` that was read before.

    Bytes come in small parts, and other connections may go first after each.
    """

    __slots__ = ("_client", "_data", "_share", "_turns", "gettimeout", "settimeout")

    def __init__(self, client: Any, data: bytes, turns: FairTurns, share: Share) -> None:
        self._client, self._data, self._turns, self._share = client, data, turns, share
        self.gettimeout, self.settimeout = client.gettimeout, client.settimeout

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes, as the socket does; OSError likewise."""
        if size <= PARSED_BYTES:  # gunicorn does not know how much is to come
            size = PART_BYTES
        if self._data:
            data, self._data = self._data[:size], self._data[size:]
        else:
            data = self._client.recv(size)
        self._turns.wait(self._share)
        return data

    def take_rest(self) -> bytes:
        """Returns what was read before and not yet handed out."""
        rest, self._data = self._data, b""
        return rest


class JoinedResponse(Response):  # type: ignore[misc]
    """Keeps the head back until the first bytes of a body of known length; other answers send it at once.

    Who writes a chunked body past the server may write its end, too, and then calls `ended`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.headers_sent: bool = False
        self.write_timeout_s: float | None = None
        """How long a client may take no bytes; None is for ever."""
        self._head = b""
        self._ended = False

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        self.headers_sent = True
        lines = [*self.default_headers(), *(f"{name}: {value}\r\n" for name, value in self.headers), "\r\n"]
        head = "".join(lines).encode("latin-1")
        if self.response_length:
            self._head = head
        else:
            self._send(head)

    def default_headers(self) -> list[str]:
        major, minor = self.req.version
        closes = self.should_close()
        return [default_head(self.status, int(time.time()), closes, self.chunked, f"HTTP/{major}.{minor}")]

    def _emit_body(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Send all of `data`, which nearly always fits at once; gevent would ask for buffer sizes first.

        OSError when the client takes no bytes for too long.
        """
        sent = 0
        if type(self.sock) is socket:
            with suppress(BlockingIOError):
                sent = self.sock._sock.send(data)
        for start in range(sent, len(data), SENT_BYTES):
            with gevent.Timeout(self.write_timeout_s, OSError(errno.EPIPE, "the client takes no bytes")):
                self.sock.sendall(memoryview(data)[start : start + SENT_BYTES])

    def ended(self) -> None:
        """The last chunk is out already."""
        self._ended = True

    def close(self) -> None:
        if not self._ended:
            super().close()
        if self._head:
            self._send(self._head)
            self._head = b""


@lru_cache(maxsize=16)
def default_head(status: str, second: int, closes: bool, chunked: bool, version: str = "HTTP/1.1") -> str:
    """What gunicorn sends before an application's own headers, at a Unix second."""
    connection = "close" if closes else "keep-alive"
    lines = (
        f"{version} {status}\r\nServer: {SERVER}\r\nDate: {http_date(second)}\r\nConnection: {connection}\r\n"
    )
    return lines + "Transfer-Encoding: chunked\r\n" if chunked else lines


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """The Date header of a Unix second (RFC 9110 section 5.6.7)."""
    return formatdate(second, usegmt=True)


HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:\d*)?", re.ASCII)
"""A valid Host (section 3.2): a name or an address, which may not be missing, and perhaps a port."""


def closes(connection: Iterable[str]) -> bool:
    """True if any member of the fields `Connection` is "close" (RFC 9110 7.6.1)."""
    return any(member.strip(" \t").lower() == "close" for value in connection for member in value.split(","))


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, whole or a beginning, ends without a carriage return (section 2.2)."""
    return data.count(b"\n") != data.count(b"\r\n")


def check_head(req: Any) -> None:
    """Looks at a request of gunicorn's parser. InvalidHeader, answered by 400: Host is missing or broken.

    HTTP/1.0 need not have one. A request that wants the connection to be closed has it closed.
    """
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if (req.version >= (1, 1)) if host is None else not HOST.fullmatch(host):
        raise InvalidHeader("HOST", req=req)
    if closes(value for name, value in req.headers if name == "CONNECTION"):
        req.force_close()


LITTLE_BYTES = 1 << 17
LITTLE_S = 0.5
"""So much is read on a connection that is kept, within this time."""
LINGER_BYTES = 1 << 20
LINGER_S = 1.0
"""So much is thrown away on one that is closed, within this time."""


def has_much_unread(req: Any) -> bool:
    """True when more of the body of gunicorn's `req` is left than is worth reading."""
    body = getattr(req, "body", None)
    if body is None:
        return False
    reader = body.reader
    if isinstance(reader, LengthReader):
        return bool(reader.length > LITTLE_BYTES)
    return isinstance(reader, ChunkedReader) and reader.parser is not None


def discard_body(parser: Any) -> bool:
    """Read the little that is left of a body; False when it is too much, or does not come."""
    if has_much_unread(parser.mesg):
        return False
    return bool(parser.finish_body(time.monotonic() + LITTLE_S, LITTLE_BYTES + 1))


def linger(client: Any) -> None:
    """Greenlet: say that nothing more comes, and read for a moment what the client still sends."""
    thrown_away = 0
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        client.shutdown(SHUT_WR)
        while thrown_away < LINGER_BYTES and (data := client.recv(LITTLE_BYTES)):
            thrown_away += len(data)
