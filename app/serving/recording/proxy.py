"""`python -m app record --proxy`: forwards requests to one server, and records exchanges with their timing.

Parts are forwarded unbuffered. The proxy requests answers without a content coding, so that secrets can be
found; all else passes unchanged.
"""

from __future__ import annotations

import argparse
import gc
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from app.serving.http.client import Connection, Target
from app.serving.http.relay import (
    CLIENT,
    HOP_BY_HOP,
    READ_TIMEOUT_S,
    ClientHandler,
    Relay,
    refuse,
    request_headers,
    watched,
)
from app.serving.recording.exchange import MOST_BODY_BYTES, sendable
from app.serving.recording.file import KeptExchange, RecordingFile
from config import ConfigError
from config.flags import Parser, whole_number
from config.installation import COMMAND

ABOUT = """\
Pass requests on to a server (any that speaks like OpenAI's), and keep whole exchanges with the moment of
every chunk (docs/recording.md). Secrets in headers, queries and bodies are masked in the file. It ends with
Ctrl-C or SIGTERM.
"""
STOP_S = 5.0
"""Longest wait for open answers at shutdown, in seconds."""
MIB = 1 << 20
PIECE = 65536
PARTING_S = 0.2
"""Grace in seconds: a client may leave at a stream's last event, before the server ends the answer."""
TARGET = "recording.target"
"""WSGI environ key of the client's original path and query."""


class RecordingHandler(ClientHandler):
    """Adds the request's original target to the WSGI environ."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        environ[TARGET] = self.path
        return environ


class RecordingProxy:
    """Forwards every request to `target`, and records it in `file`. `now` returns monotonic seconds."""

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
        """Serves WSGI. Status 502 when the server cannot be reached, or sends no answer.

        ConnectionResetError when the server's answer breaks off, so that the client's breaks off, too.
        An exchange is recorded if its answer ends before the client leaves.
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
        with suppress(BrokenPipeError, ConnectionResetError):  # an early answer may close the connection
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
    """Returns the headers for the client, without a Content-Length that would break its connection."""
    left_out = HOP_BY_HOP
    if response.length is None or response.status in (204, 304):
        left_out = left_out | {"content-length"}
    return sendable([each for each in response.getheaders() if each[0].lower() not in left_out])


def run(argv: Sequence[str]) -> int:
    """Records until Ctrl-C or SIGTERM; returns the exit status."""
    flags = Parser(prog=f"{COMMAND} record --proxy", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("--proxy", action="store_true", required=True, help=argparse.SUPPRESS)
    add("--target", required=True, metavar="URL", help="the server, such as http://host:8000")
    add("--out", required=True, type=Path, metavar="FILE", help="file to write; it must not be there yet")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where clients come to [127.0.0.1]")
    add("--port", type=whole_number(0, 65535), default=8001, metavar="N", help="0 is any free one [8001]")
    add(
        "--max-body-mb",
        type=whole_number(1, MOST_BODY_BYTES // MIB),
        default=MOST_BODY_BYTES // MIB,
        metavar="N",
        help="exchanges with larger bodies pass, and are not kept [8]",
    )
    given = flags.parse_args(argv)
    target = Target.of(given.target)
    file = RecordingFile(given.out, target.url)
    proxy = RecordingProxy(target, file, given.max_body_mb * MIB)
    server = WSGIServer(
        (given.host, given.port), proxy, handler_class=RecordingHandler, log=None, error_log=None
    )
    try:
        server.start()
    except OSError as error:
        file.close()
        given.out.unlink()
        raise ConfigError(f"port {given.port}: {error.strerror or error}") from None
    print(
        f"http://{given.host}:{server.server_port} passes on to {target.url}, kept in {file.path}", flush=True
    )
    gc.collect()
    gc.freeze()  # a full collection takes tens of milliseconds, which recorded times would include
    over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, over.set)
    over.wait()
    server.stop(STOP_S)
    file.close()
    print(f"{file.path}: {file.kept} exchanges, {file.left_out} not kept", flush=True)
    return 0
