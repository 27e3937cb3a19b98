"""Requests that gunicorn parses and Flask answers: their bytes, heads and responses."""

from __future__ import annotations

import errno
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from socket import SHUT_WR
from typing import TYPE_CHECKING, Any

import gevent.socket
from gunicorn import http
from gunicorn.http import wsgi
from gunicorn.http.body import Body, ChunkedReader, LengthReader
from gunicorn.http.errors import (
    InvalidHeader,
    InvalidRequestLine,
    InvalidRequestMethod,
    InvalidResponseHeader,
    InvalidResponseHeaderName,
    LimitRequestHeaders,
    ParseException,
    UnsupportedTransferCoding,
)
from gunicorn.util import write_nonblock

from app.core.api.responder import EventStream
from app.core.base.clock.pause import pause
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.head_parser import HeadParser
from app.core.server.gunicorn.heads import HOST
from app.core.server.http.chunks import BoundedChunks
from app.core.server.http.context import CONTEXT, context_of
from app.core.server.http.response import Response
from app.core.server.http.stream_transport import LAST_CHUNK

if TYPE_CHECKING:
    from gunicorn.config import Config
    from gunicorn.http.message import Request
    from gunicorn.http.parser import Parser
    from gunicorn.workers.ggevent import GeventWorker

    from app.core.server.gunicorn.hub_connection import FastPath

MAX_DISCARDED_BYTES = 1 << 17
"""Most bytes of an unread body that are read to keep a connection open."""
LINGER_BYTES = 1 << 26
"""Most bytes that are read and discarded before a connection is closed (RFC 9112 9.6).

Many clients send a whole file before they read the answer, even if it refuses the file.
"""
LINGER_S = 5.0
"""Most seconds that are spent on reading and discarding before a connection is closed."""
LINGER_PAUSE_S = 1.0
"""Longest pause of a client that still sends, in seconds."""
MAX_COPIED_BYTES = 1 << 20
"""Most bytes of a body that are copied behind the head, and sent at once."""
MAX_PARSED_BYTES = 8192
"""Most bytes per read while gunicorn searches for the end of a head or chunk."""
PART_BYTES = 4096
"""Bytes per parsed part: one-byte chunks in a part this long take 4 ms."""
MAX_RECORD_BYTES = 1 << 14
"""Most bytes of a TLS record."""
GENERAL_COST_S = 0.001
"""Estimated processor time of a request through Flask, in seconds."""
DISCONNECT_ERRORS = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
DISCARD_S = 0.5
"""Seconds that are spent on the end of an unread body to keep a connection open."""
MAX_TARGET_BYTES = 65_535
"""Most bytes of the target of a request, as in vLLM's parser."""
LARGE_HEAD_PARTS = 4
"""A part of a large head is at least a fourth: the parser searches the whole head each time."""
SMALL_HEAD_BYTES = 1 << 13
"""A head of this size is never rejected because of the heads of other clients."""
MAX_LARGE_HEADS_BYTES = 1 << 25
"""Most bytes of larger heads that are received or answered at the same time.

They take up to four times that. Each connection could otherwise hold a head of megabytes, and
10,000 connections, gigabytes in heads of 56 KiB.
"""
INVALID_REQUEST = b"Invalid HTTP request received."
PROTOCOL_ERROR = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(INVALID_REQUEST), INVALID_REQUEST)
)
"""The response of vLLM's server to a request that is no HTTP."""
LINE_ENDS = b"\r\n"


class LargeHeads:
    """Counts the bytes of a worker's large heads."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def add(self, size: int) -> None:
        """Counts further bytes.

        Raises:
            LimitRequestHeaders: all large heads together are too large.
        """
        if self.size_bytes + size > MAX_LARGE_HEADS_BYTES:
            raise LimitRequestHeaders(f"more than {MAX_LARGE_HEADS_BYTES} bytes in large heads")
        self.size_bytes += size

    def remove(self, size: int) -> None:
        """Removes the bytes of a head whose request has ended."""
        self.size_bytes -= size


class FairSocket:
    """A client's socket for gunicorn's parser; returns `data`, which was read before, first.

    Bytes come in small parts, and other connections may run after each part. Empty lines before a
    request are skipped (RFC 9112 section 2.2).
    """

    def __init__(
        self, connection: FastConnection, data: bytes, heads: LargeHeads, max_head_bytes: int
    ) -> None:
        """`max_head_bytes` limits the bytes of an incomplete head."""
        self._connection = connection
        self.data = data
        self._heads = heads
        self.max_head_bytes: int | None = max_head_bytes
        """None after the head."""
        self._head_bytes = 0
        self._large_bytes = 0
        self.gettimeout = connection.client.gettimeout
        self.settimeout = connection.client.settimeout

    def recv(self, size: int) -> bytes:
        """Returns at most `size` bytes, after a turn; none at the end of the connection.

        Raises:
            InvalidRequestMethod: the request does not begin with an uppercase letter.
            LimitRequestHeaders: the head is too large.
        """
        if size <= MAX_PARSED_BYTES:  # gunicorn parses a head or chunk of unknown length
            size = PART_BYTES
        if self.max_head_bytes is None:
            return self._receive(size)
        if self._head_bytes >= self.max_head_bytes:
            raise LimitRequestHeaders(f"more than {self.max_head_bytes} bytes")
        part = self._receive(max(size, self._head_bytes // LARGE_HEAD_PARTS))
        while part and not self._head_bytes and not part.lstrip(LINE_ENDS):
            part = self._receive(size)
        if not self._head_bytes:
            part = part.lstrip(LINE_ENDS)
            if part and not part[:1].isupper():
                raise InvalidRequestMethod(repr(part[:1]))
        self._head_bytes += len(part)
        size = self._head_bytes + len(self.data)
        if size > SMALL_HEAD_BYTES:
            self._heads.add(size - self._large_bytes)
            self._large_bytes = size
        return part

    def release_head(self) -> None:
        """Ends the count of the head's bytes."""
        self._heads.remove(self._large_bytes)
        self._large_bytes = 0

    def _receive(self, size: int) -> bytes:
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
            # vLLM does not send this line: connections of HTTP/1.1 are kept anyway.
            lines = [
                line for line in self.default_headers() if line != "Connection: keep-alive\r\n"
            ]
            lines += [f"{name}: {value}\r\n" for name, value in self.headers]
            self._connection.put(("".join(lines) + "\r\n").encode("latin-1"))

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if len(data) > MAX_COPIED_BYTES:
            pause()  # sends the head
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


class GeneralPath:
    """Serves requests by gunicorn's parser and the WSGI application of `worker`."""

    def __init__(self, worker: GeventWorker, path: FastPath) -> None:
        self._worker = worker
        self._path = path
        self._large_heads = LargeHeads()

    def answer(self, connection: FastConnection, data: bytes, arrival_s: float) -> None:
        """Greenlet: answers one request, which arrived before its wait for a turn."""
        cost = connection.cost
        following: bytes | None = None
        try:
            cost.cost_s = max(cost.cost_s, GENERAL_COST_S)
            self._path.turns.wait(cost)
            following = self._serve(connection, data, arrival_s)
        finally:
            if following is None:
                connection.close()
            else:
                connection.take_back(following)

    def _serve(self, connection: FastConnection, data: bytes, arrival_s: float) -> bytes | None:
        """Serves a request, which begins with `data`; returns further bytes, or None to close."""
        client = connection.client
        addr = connection.address
        req = None
        max_head_bytes = self._worker.cfg.limit_request_field_size
        source = FairSocket(connection, data, self._large_heads, max_head_bytes=max_head_bytes)
        try:
            parser = HeadParser(self._worker.cfg, source, addr)
            head_s = min(self._path.idle_s, self._path.client_timeout_s)
            with gevent.Timeout(head_s, False):
                req = next(parser)
            if not req:
                return None
            source.max_head_bytes = None
            return self._serve_parsed(connection, req, source, parser, arrival_s)
        except (http.errors.NoMoreData, StopIteration) as error:
            self._worker.log.debug("Closing connection. %s", error)
            if req is not None and has_much_unread(req):
                linger(client)
        except ssl.SSLError as error:
            if error.args[0] != ssl.SSL_ERROR_EOF:
                self._worker.handle_error(req, client, addr, error)
        except OSError as error:
            if error.errno not in DISCONNECT_ERRORS:
                self._worker.log.exception("A socket error occurred while a request was processed.")
        except BaseException as error:
            if is_invalid_request(error):
                self._worker.log.warning("Invalid request from ip=%s: %s", addr[0], error)
                with suppress(OSError):
                    write_nonblock(client, PROTOCOL_ERROR)
            else:
                self._worker.handle_error(req, client, addr, error)
            # Its frames hold copies of the head: 2,500 clients that linger held 400 MB.
            error.__traceback__ = None
            linger(client)
        finally:
            source.release_head()
        return None

    def _serve_parsed(
        self,
        connection: FastConnection,
        req: Request,
        source: FairSocket,
        parser: Parser,
        arrival_s: float,
    ) -> bytes | None:
        """Serves a parsed request; returns further bytes, or None to close."""
        check_head(req)
        if isinstance(req.body.reader, ChunkedReader):
            req.body = Body(BoundedChunks(req, req.unreader))
        declared_body = req.body
        if asks_for_upgrade(req):
            if has_much_unread(req):
                req.force_close()
            req.headers = [  # the application sees no body
                (name, value)
                for name, value in req.headers
                if name not in ("CONTENT-LENGTH", "TRANSFER-ENCODING")
            ]
            req.body = Body(LengthReader(req.unreader, 0))

        def has_more() -> bool:
            buffered = source.data or parser.unreader.buf.getbuffer().nbytes
            return bool(buffered) or connection.has_unread

        self._respond(connection, req, arrival_s, has_more)
        req.body = declared_body
        # A client that always has a request ready would block the loop.
        self._path.turns.wait(connection.cost)
        if not has_much_unread(req) and parser.finish_body(
            time.monotonic() + DISCARD_S, MAX_DISCARDED_BYTES + 1
        ):
            following: bytes = parser.unreader.take_buffered() + source.data
            return following
        linger(connection.client)
        return None

    def _respond(
        self,
        connection: FastConnection,
        req: Request,
        arrival_s: float,
        has_more: Callable[[], bool],
    ) -> None:
        """Serves one request. `has_more()`: further bytes have arrived.

        Raises:
            StopIteration: the connection has to be closed.
        """
        response, environ = wsgi.create(
            req=req,
            sock=connection.client,
            client=connection.address,
            server=connection.bound,
            cfg=self._worker.cfg,
            response_class=GeneralResponse,
            response_args=(connection, has_more),
        )
        answer_with_http_1_1(req)
        environ["wsgi.multithread"] = True  # greenlets call the application at the same time
        environ[CONTEXT] = context_of(environ, arrival_s)
        if not self._worker.cfg.keepalive:
            response.force_close()
        body: Any = None
        try:
            body = self._worker.wsgi(environ, response.start_response)
            # As in vLLM, the server answers a body that is no HTTP, whatever the application did.
            malformed = getattr(req.body.reader, "malformed", None)
            if malformed is not None:
                raise malformed
            if has_much_unread(req):
                response.force_close()
            response.send(body)
        except gevent.GreenletExit:
            raise StopIteration from None
        except Exception as error:
            if not response.headers_sent or isinstance(error, OSError):
                raise
            # Part of the answer has been sent: only closing can signal the error.
            self._worker.log.exception("a response ended early")
            raise StopIteration from None
        finally:
            if body is not None and self._worker.log.access_log_enabled:
                duration = timedelta(seconds=time.monotonic() - arrival_s)
                self._worker.log.access(response, req, environ, duration)
            if hasattr(body, "close"):
                body.close()
        if response.should_close():
            raise StopIteration


def answer_with_http_1_1(req: Request) -> None:
    """Makes gunicorn answer HTTP/1.0 as vLLM's server: with a head of 1.1, in chunks, and close."""
    if req.version < (1, 1):
        req.force_close()
        req.version = (1, 1)


def is_invalid_request(error: BaseException) -> bool:
    """Returns whether a client has sent no HTTP; an invalid header of a response is our mistake."""
    if isinstance(error, InvalidResponseHeader | InvalidResponseHeaderName):
        return False
    return isinstance(error, ParseException)


def asks_for_upgrade(req: Request) -> bool:
    """Returns whether a client wants to change to another protocol, such as `h2c`.

    vLLM's server then stops reading at the end of the head.
    """
    members = _joined_values(req, "CONNECTION").lower().split(",")
    has_upgrade = any(member.strip(" \t") == "upgrade" for member in members)
    return has_upgrade and any(name == "UPGRADE" for name, _ in req.headers)


def check_head(req: Request) -> None:
    """Checks a request of gunicorn's parser, and honors `close` within a list (RFC 9110 7.6.1).

    Raises:
        InvalidRequestLine: the target is too long, or is a URL without a path.
        InvalidHeader: Host is invalid.
        UnsupportedTransferCoding: the body has a coding other than `chunked` (RFC 9112 section
            6.1). gunicorn accepts `gzip, chunked`, and would not decompress the body.
    """
    if len(req.uri) > MAX_TARGET_BYTES:
        raise InvalidRequestLine("the target is too long")
    if not req.path:
        raise InvalidRequestLine("the target has no path")
    host = next((value for name, value in req.headers if name == "HOST"), None)
    if host and not HOST.fullmatch(host):
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
        client.settimeout(LINGER_PAUSE_S)
        while discarded_bytes < LINGER_BYTES:
            data = client.recv(MAX_DISCARDED_BYTES)
            if not data:
                return
            discarded_bytes += len(data)
            pause()  # a client that sends without a pause must not block the loop
