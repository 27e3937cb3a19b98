"""A WSGI application that passes requests on to one server, and keeps whole exchanges with their moments.

Nothing waits to become full: a piece leaves as it came. Answers are asked for without a content coding, so
that secrets in them can be found; all else passes unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent

from app.fleet.proxy import (
    CLIENT,
    HOP_BY_HOP,
    READ_TIMEOUT_S,
    ClientHandler,
    Relay,
    refuse,
    request_headers,
    watched,
)
from app.load.client import Connection, Target
from app.recording.exchange import MOST_BODY_BYTES, sendable
from app.recording.file import KeptExchange, RecordingFile

PIECE = 65536
PARTING_S = 0.2
"""A client may leave at the last event of a stream: so long the server has, in seconds, to end the answer."""
TARGET = "recording.target"
"""Key of the WSGI environ: path and query as they were sent."""


class RecordingHandler(ClientHandler):
    """Also hands the target of the request to the application, as it was sent."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        environ[TARGET] = self.path
        return environ


class RecordingProxy:
    """Passes every request on to `target`, and has `file` keep it. `now` gives monotonic seconds."""

    def __init__(
        self,
        target: Target,
        file: RecordingFile,
        most_bytes: int = MOST_BODY_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._file = file
        self._most = most_bytes
        self._now = now

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        """Serves WSGI. Status 502 when the server cannot be reached, or gives no answer.

        ConnectionResetError when the answer breaks off: the client's is to break off, too. An exchange is
        kept when it has ended, and its client has not left.
        """
        kept = KeptExchange(self._file, environ["REQUEST_METHOD"], environ[TARGET], self._most, self._now())
        kept.request_headers = list(request_headers(environ).items())
        connection = self._target.connection(READ_TIMEOUT_S)
        relay = Relay(connection, lambda: None, lambda: None)
        try:
            connection.connect()
            self._send(connection, kept, environ)
            unwatch = watched(environ.get(CLIENT), partial(_left, kept, connection))
            relay = Relay(connection, unwatch, lambda: None)
            response = connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            kept.give_up(why := f"{self._target.url}: {error!r}")
            yield from refuse(start_response, "502 Bad Gateway", why)
        else:
            yield from self._passed_on(response, relay.of(response), kept, start_response)
        finally:
            relay.close()
            kept.over()

    def _send(self, connection: Connection, kept: KeptExchange, environ: WSGIEnvironment) -> None:
        headers = dict(kept.request_headers)
        headers.pop("accept-encoding", None)  # http.client then asks for none
        length, chunked = environ.get("CONTENT_LENGTH"), "HTTP_TRANSFER_ENCODING" in environ
        body = None
        if length or chunked:
            headers |= {"content-length": length} if length else {}
            body = _passed(environ["wsgi.input"], kept)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had heard all
            connection.request(kept.method, self._target.prefix + environ[TARGET], body, headers)
        kept.asked_s = self._now()

    def _passed_on(
        self, response: HTTPResponse, relay: Relay, kept: KeptExchange, start_response: StartResponse
    ) -> Iterator[bytes]:
        kept.head_s = self._now()
        kept.status, kept.headers = response.status, _answer_headers(response)
        write = start_response(f"{response.status} {response.reason}", kept.headers)
        write(b"")  # status line and headers leave now
        try:
            for piece in relay:
                kept.came(self._now(), piece)
                yield piece
            kept.is_over = True
        except ConnectionResetError:
            kept.is_broken = kept.is_over = True
            raise
        finally:
            kept.end_s = self._now()


def _passed(body: Any, kept: KeptExchange) -> Iterator[bytes]:
    while piece := body.read(PIECE):
        kept.sent(piece)
        yield piece


def _left(kept: KeptExchange, connection: Connection) -> None:
    gevent.sleep(PARTING_S)
    kept.give_up("the client left")
    connection.cut()


def _answer_headers(response: HTTPResponse) -> list[tuple[str, str]]:
    """Returns the headers for the client, without a length that would break its connection."""
    left_out = HOP_BY_HOP
    if response.length is None or response.status in (204, 304):
        left_out = left_out | {"content-length"}
    return sendable([each for each in response.getheaders() if each[0].lower() not in left_out])
