"""`understudy record --proxy`: forwards requests, and records exchanges with their timing.

Parts are forwarded unbuffered, and unchanged, except for the content coding (`Upstream`).
"""

import argparse
import gc
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import BinaryIO
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
from gevent.event import Event

from app.core.server.http.context import context_of
from app.core.server.http.errors import ApiError, forbidden
from app.core.server.middleware.foreign_pages import MAX_QUOTED_LENGTH, is_foreign_page
from app.core.server.middleware.hosts import HostNames
from app.extensions.recording.exchange import MAX_BODY_BYTES
from app.extensions.recording.forwarding import check_path, origin_form
from app.extensions.recording.recorder import RelayedExchange, Upstream
from app.extensions.recording.request_form import model_of
from app.extensions.recording.targets import targets_by_model
from app.extensions.recording.writer import RecordingFile
from app.shared import relay
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, whole_number

DESCRIPTION = """\
Forward requests to a server with an OpenAI-compatible API, and record whole exchanges with the time
of every chunk (docs/recording.md). Secrets in headers, queries and bodies are masked in the file.
Stop with Ctrl-C or SIGTERM.
"""
STOP_TIMEOUT_S = 5.0
MIB = 1 << 20
PIECE_BYTES = 65536


class RecordingProxy:
    """WSGI application that forwards requests to the targets of `upstream`, and records them.

    Refuses web pages of other origins, which could use the key of a target: `hosts` are the names
    of the proxy, besides those that no page can take over (`HostNames`). With `forwards_pages`, the
    target decides about the pages, because it needs no key.
    """

    def __init__(
        self, upstream: Upstream, hosts: Iterable[str] = (), *, forwards_pages: bool = False
    ) -> None:
        self._upstream = upstream
        self._hosts = HostNames(hosts)
        self._forwards_pages = forwards_pages

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        """Forwards a request.

        Answers 502 or 504 when the target does not answer, 400 for a path that leaves its first
        segment, and 403 for a foreign web page.

        Raises:
            ConnectionResetError: the target breaks its answer off.
        """
        target = origin_form(environ[relay.TARGET])
        try:
            self._check_page(environ)
            check_path(target)
        except ApiError as error:
            yield from _refuse(start_response, error)
            return
        headers = relay.request_headers(environ)
        length = environ.get("CONTENT_LENGTH")
        if length:
            headers["content-length"] = length
        exchange = RelayedExchange(
            self._upstream,
            environ["REQUEST_METHOD"],
            target,
            headers=headers,
            client=environ[relay.CLIENT],
        )
        source = environ["wsgi.input"]
        model = None
        body: Iterator[bytes] | None = None
        if length or "HTTP_TRANSFER_ENCODING" in environ:
            body = _pieces(source, PIECE_BYTES, exchange)
            if len(self._upstream.targets) > 1:
                start = next(_pieces(source, MAX_BODY_BYTES, exchange), b"")
                model = model_of(start)
                body = chain((start,), body)
        with closing(exchange):
            try:
                exchange.ask(model, body)
            except ApiError as error:
                yield from _refuse(start_response, error)
                return
            write = start_response(f"{exchange.status} {exchange.reason}", exchange.headers)
            write(b"")  # status line and headers are sent now
            yield from exchange

    def _check_page(self, environ: WSGIEnvironment) -> None:
        """Checks where a request comes from, as for control routes.

        Raises:
            ApiError: 403 for a page of another origin, or another name than the proxy's.
        """
        host = environ.get("HTTP_HOST", "")
        if not self._hosts.accepts(host):
            raise forbidden(
                f"The Host header {host[:MAX_QUOTED_LENGTH]!r} is not a name of this proxy. "
                "Pass the name as --host."
            )
        if self._forwards_pages:
            return
        if is_foreign_page(context_of(environ).headers, host):
            raise forbidden("Pages from other origins cannot send this request.")


def _pieces(source: BinaryIO, size: int, exchange: RelayedExchange) -> Iterator[bytes]:
    """Yields and records the pieces of a request's body, each of at most `size` bytes."""
    piece = source.read(size)
    while piece:
        exchange.add_piece("request", piece)
        yield piece
        piece = source.read(size)


def _refuse(start_response: StartResponse, error: ApiError) -> Iterator[bytes]:
    yield from relay.refuse(start_response, f"{error.status} {error.type}", error.message)


def run(argv: Sequence[str]) -> int:
    """Runs the command until a signal; returns the exit status.

    Raises:
        ConfigError: an option is not valid, or the file or port cannot be used.
    """
    options = _parse(argv)
    targets = targets_by_model(options.target)
    urls = ", ".join(target.url for target in targets.values())
    file = RecordingFile(options.out, urls, warn=_print_warning)
    proxy = RecordingProxy(
        Upstream(targets, file, max_bytes=options.max_body_mb * MIB), hosts=(options.host,)
    )
    server = relay.server_of(proxy, options.host, options.port)
    try:
        server.start()
    except OSError as error:
        file.close()
        options.out.unlink()
        raise ConfigError(f"port {options.port}: {error.strerror or error}") from None
    url = f"http://{options.host}:{server.server_port}"
    print(f"{url} forwards to {urls} and records to {file.path}", flush=True)
    gc.collect()
    gc.freeze()  # a full collection takes tens of milliseconds, which recorded times would include
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, stopped.set)
    stopped.wait()
    server.stop(STOP_TIMEOUT_S)
    file.close()
    print(f"{file.path}: {file.written} exchanges recorded, {file.dropped} dropped", flush=True)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    flags = FlagParser(
        prog=f"{COMMAND} record --proxy", description=DESCRIPTION, allow_abbrev=False
    )
    flags.examples = (
        f"{COMMAND} record --proxy --target http://localhost:8000 --out session.jsonl",
    )
    flags.add_argument("--proxy", action="store_true", required=True, help=argparse.SUPPRESS)
    flags.add_argument(
        "--target",
        required=True,
        action="append",
        metavar="URL",
        help="server URL, such as http://host:8000; repeat MODEL=URL for one server per model",
    )
    flags.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="FILE",
        help="file to write; it must not exist",
    )
    flags.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on [127.0.0.1]"
    )
    flags.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=8001,
        metavar="N",
        help="port to listen on; 0 is any free port [8001]",
    )
    max_mib = MAX_BODY_BYTES // MIB
    flags.add_argument(
        "--max-body-mb",
        type=whole_number(1, max_mib),
        default=max_mib,
        metavar="N",
        help="exchanges with larger bodies are forwarded but not recorded [8]",
    )
    options: argparse.Namespace = flags.parse_args(argv)
    return options


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
