"""`python -m app record --proxy`: forwards requests, and records exchanges with their timing.

Parts are forwarded unbuffered, and unchanged, but for the content coding (`Upstream`).
"""

import argparse
import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
from gevent.event import Event

from app.base.clock.pause import share_loop
from app.serving.http import client, relay
from app.serving.http.errors import ApiError
from app.serving.recording import exchange as recordings
from app.serving.recording.forwarding import check_path, origin_form
from app.serving.recording.recorder import RelayedExchange, Upstream
from app.serving.recording.writer import RecordingFile
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, whole_number

ABOUT = """\
Pass requests on to a server (any that speaks like OpenAI's), and keep whole exchanges with the moment of
every chunk (docs/recording.md). Secrets in headers, queries and bodies are masked in the file. It ends with
Ctrl-C or SIGTERM.
"""
STOP_S = 5.0
MIB = 1 << 20
PIECE = 65536


class RecordingProxy:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        """Answers 502 or 504 without an answer, and 400 for a path that leaves its first segment.

        ConnectionResetError if the server breaks its answer off.
        """
        target = origin_form(environ[relay.TARGET])
        try:
            check_path(target)
        except ApiError as error:
            yield from relay.refuse(start_response, f"{error.status} {error.type}", error.message)
            return
        asked, headers, model = environ["wsgi.input"], relay.request_headers(environ), None
        length, client = environ.get("CONTENT_LENGTH"), environ[relay.CLIENT]
        exchange = RelayedExchange(
            self._upstream, environ["REQUEST_METHOD"], target, headers, client
        )

        def pieces(size: int) -> Iterator[bytes]:
            while piece := asked.read(size):
                exchange.take("request", piece)
                yield piece

        body = pieces(PIECE) if length or "HTTP_TRANSFER_ENCODING" in environ else None
        if body is not None and len(self._upstream.targets) > 1:
            start = next(pieces(recordings.MOST_BODY_BYTES), b"")
            model, body = recordings.model_of(start), chain((start,), body)
        if length:
            headers["content-length"] = length
        with closing(exchange):
            try:
                exchange.ask(model, body)
            except ApiError as error:
                yield from relay.refuse(
                    start_response, f"{error.status} {error.type}", error.message
                )
                return
            write = start_response(f"{exchange.status} {exchange.reason}", exchange.headers)
            write(b"")  # status line and headers leave now
            yield from exchange


def run(argv: Sequence[str]) -> int:
    flags = FlagParser(prog=f"{COMMAND} record --proxy", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("--proxy", action="store_true", required=True, help=argparse.SUPPRESS)
    about = "the server, such as http://host:8000; several, each for one model, as MODEL=URL"
    add("--target", required=True, action="append", metavar="URL", help=about)
    add(
        "--out",
        required=True,
        type=Path,
        metavar="FILE",
        help="file to write; it must not be there yet",
    )
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where clients come to [127.0.0.1]")
    add(
        "--port",
        type=whole_number(0, 65535),
        default=8001,
        metavar="N",
        help="0 is any free one [8001]",
    )
    most = recordings.MOST_BODY_BYTES // MIB
    larger = "exchanges with larger bodies pass, and are not kept [8]"
    add("--max-body-mb", type=whole_number(1, most), default=most, metavar="N", help=larger)
    given = flags.parse_args(argv)
    targets = client.Target.by_model(given.target)
    urls = ", ".join(target.url for target in targets.values())
    file = RecordingFile(
        given.out, urls, warn=lambda text: print(text, file=sys.stderr, flush=True)
    )
    proxy = RecordingProxy(Upstream(targets, file, most_bytes=given.max_body_mb * MIB))
    server = relay.server_of(proxy, given.host, given.port)
    try:
        server.start()
    except OSError as error:
        file.close()
        given.out.unlink()
        raise ConfigError(f"port {given.port}: {error.strerror or error}") from None
    where = f"http://{given.host}:{server.server_port}"
    print(f"{where} passes on to {urls}, kept in {file.path}", flush=True)
    gc.collect()
    gc.freeze()  # a full collection takes tens of milliseconds, which recorded times would include
    share_loop()
    over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, over.set)
    over.wait()
    server.stop(STOP_S)
    file.close()
    print(f"{file.path}: {file.kept} exchanges, {file.left_out} not kept", flush=True)
    return 0
