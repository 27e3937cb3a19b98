"""A WSGI application that passes requests on to one server, and keeps whole exchanges with their moments.

Nothing waits to become full: a piece leaves as it came. Answers are asked for without a content coding, so
that secrets in them can be found; all else passes unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves WSGI. Status 502 when the server cannot be reached, or gives no answer."""
        method, target = environ["REQUEST_METHOD"], environ[TARGET]
        kept = KeptExchange(self._file, method, target, self._most, self._now())
        kept.request_headers = list(request_headers(environ).items())
        connection = self._target.connection(READ_TIMEOUT_S)
        answer = ProxyResponse(connection, kept, environ.get(CLIENT), self._now)
        try:
            connection.connect()
            response = self._asked(connection, kept, environ, answer)
        except (OSError, HTTPException, ValueError) as error:
            return answer.refused(f"{self._target.url}: {error!r}", start_response)
        except BaseException:
            answer.close()
            raise
        kept.status, kept.headers = response.status, _answer_headers(response)
        write = start_response(f"{response.status} {response.reason}", kept.headers)
        return answer.of(response, write)

    def _asked(
        self, connection: Connection, kept: KeptExchange, environ: WSGIEnvironment, answer: ProxyResponse
    ) -> HTTPResponse:
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
        answer.watch()
        response = connection.getresponse()
        kept.head_s = self._now()
        return response


def _passed(body: Any, kept: KeptExchange) -> Iterator[bytes]:
    while piece := body.read(PIECE):
        kept.sent(piece)
        yield piece


class ProxyResponse:
    """An answer on its way, for WSGI. An exchange is kept when it has ended, and its client has not left."""

    def __init__(
        self, connection: Connection, kept: KeptExchange, client: Any, now: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._kept = kept
        self._client = client
        self._now = now
        self._unwatch: Callable[[], None] = lambda: None
        self._relay: Relay | None = None
        self._write: Callable[[bytes], object] | None = None
        self._is_over = False

    def watch(self) -> None:
        """Notices when the client leaves."""
        self._unwatch = watched(self._client, self._left)

    def _left(self) -> None:
        gevent.sleep(PARTING_S)
        self._kept.give_up("the client left")
        self._connection.cut()

    def of(self, response: HTTPResponse, write: Callable[[bytes], object]) -> ProxyResponse:
        """This answer; `write` is WSGI's."""
        self._write = write
        self._relay = Relay(self._connection, self._unwatch, lambda: None).of(response)
        return self

    def refused(self, why: str, start_response: StartResponse) -> Iterable[bytes]:
        """Answers for a server that gave no answer."""
        self._kept.give_up(why)
        self.close()
        return refuse(start_response, "502 Bad Gateway", why)

    def __iter__(self) -> Iterator[bytes]:
        """The pieces. ConnectionResetError when the answer breaks off: the client's is to break off, too."""
        assert self._relay is not None and self._write is not None
        kept, now = self._kept, self._now
        self._write(b"")  # status line and headers leave now
        try:
            for piece in self._relay:
                kept.came(now(), piece)
                yield piece
            self._is_over = True
        except ConnectionResetError:
            kept.is_broken = self._is_over = True
            raise
        finally:
            kept.end_s = now()

    def close(self) -> None:
        """Closes the connection to the server, and has the exchange kept."""
        if self._relay is not None:
            self._relay.close()
        else:
            self._unwatch()
            self._connection.close()
        if not self._is_over:
            self._kept.give_up("the client left")
        self._kept.over()


def _answer_headers(response: HTTPResponse) -> list[tuple[str, str]]:
    """Those for the client. A length that nobody can go by would break its connection."""
    left_out = HOP_BY_HOP
    if response.length is None or response.status in (204, 304):
        left_out = left_out | {"content-length"}
    return sendable([each for each in response.getheaders() if each[0].lower() not in left_out])
