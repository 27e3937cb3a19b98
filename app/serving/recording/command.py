"""`python -m app record --proxy`: a proxy between clients and a server that records their exchanges."""

from __future__ import annotations

import argparse
import gc
import signal
from collections.abc import Sequence
from pathlib import Path

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from app.serving.http.client import Target
from app.serving.recording.exchange import MOST_BODY_BYTES
from app.serving.recording.file import RecordingFile
from app.serving.recording.proxy import RecordingHandler, RecordingProxy
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


def run(argv: Sequence[str]) -> int:
    _record(_parser().parse_args(argv))
    return 0


def _parser() -> argparse.ArgumentParser:
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
    return flags


def _record(given: argparse.Namespace) -> None:
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
    _wait_for_the_end()
    server.stop(STOP_S)
    file.close()
    print(f"{file.path}: {file.kept} exchanges, {file.left_out} not kept", flush=True)


def _wait_for_the_end() -> None:
    over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, over.set)
    over.wait()
