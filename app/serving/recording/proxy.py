"""`python -m app record --proxy`: forwards requests to one server, and records exchanges with their timing.

Parts are forwarded unbuffered. The proxy requests answers without a content coding, so that secrets can be
found; all else passes unchanged. Exchanges are masked and appended to the file when they end.
"""

import argparse
import gc
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
from gevent.event import Event
from gevent.pool import Group

from app.base.clock.pause import call_off_hub, share_loop
from app.serving.http import client as http
from app.serving.middleware.masking import mask_headers, mask_query
from app.serving.recording import exchange as recordings
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser, whole_number

MOST_HELD_BYTES = 256 << 20
"""Most bytes held by all open exchanges."""
PIECE_BYTES = 200
"""Memory overhead of a part, in bytes."""
MOST_PIECES = 100_000
"""Most parts of a recorded answer; masking and writing more would delay other requests."""


class RecordingFile:
    """Appends exchanges to a new file; `warn` receives a line for each that is dropped."""

    def __init__(
        self,
        path: Path,
        target: str,
        now: Callable[[], float] = time.monotonic,
        most_held_bytes: int = MOST_HELD_BYTES,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self.path, self.now, self.warn = path, now, warn
        self.kept = self.left_out = 0
        self.free_bytes = most_held_bytes
        self.began_s = now()
        self._writing = Group()
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._file: BinaryIO = path.open("xb", buffering=0)
            header = recordings.Header(recordings.FORMAT, recordings.VERSION, target, began)
            self._end = self._file.write(recordings.line_of(header))
        except FileExistsError:
            raise recordings.RecordingError(f"{path}: is there already") from None
        except OSError as error:
            raise recordings.RecordingError(f"{path}: cannot be written: {error.strerror or error}") from None

    def put(self, exchange: "KeptExchange") -> None:
        """Writes the exchange in its own greenlet, so that the client does not wait."""
        self._writing.spawn(self._write, exchange)

    def leave_out(self, exchange: "KeptExchange", why: str) -> None:
        self.left_out += 1
        self.warn(f"not kept: {exchange.method} {mask_query(exchange.target)}: {why}")

    def _write(self, exchange: "KeptExchange") -> None:
        """Appends the whole line or nothing: a partial line would spoil the next."""
        try:
            line = call_off_hub(exchange.line)
            if self._file.write(line) != len(line):
                raise OSError("there is no room for it")
            self._end += len(line)
            self.kept += 1
        except (recordings.HiddenSecrets, OSError, ValueError) as error:
            with suppress(OSError):
                self._file.truncate(self._end)
                self._file.seek(self._end)
            self.leave_out(exchange, getattr(error, "strerror", None) or str(error))
        finally:
            exchange.release()

    def close(self) -> None:
        self._writing.join()
        self._file.close()


class KeptExchange:
    """An exchange in progress. Holds the parts received so far while each body is within `most_bytes`."""

    def __init__(self, file: RecordingFile, method: str, target: str, most_bytes: int) -> None:
        self.excuse = ""
        """Reason for dropping the exchange; empty while it is recorded."""
        self.method, self.target = method, target
        self.request_headers: list[tuple[str, str]] = []
        self.headers: list[tuple[str, str]] = []
        self.status = 0
        self.at_s = self.asked_s = self.head_s = self.end_s = file.now()
        self.is_broken = self.is_over = False
        """`is_broken`: the answer broke off. `is_over`: the answer ended or broke off."""
        self._file = file
        self._most = most_bytes
        self._sizes, self._held = Counter[str](), 0
        self._pieces: defaultdict[str, list[tuple[float, bytes]]] = defaultdict(list)

    def take(self, of: str, piece: bytes) -> None:
        """Keeps a piece of the "request" or of the "answer"."""
        size, answer = len(piece) + PIECE_BYTES, self._pieces["answer"]
        self._sizes[of] += len(piece)
        if self._sizes[of] > self._most:
            self.give_up(f"its {of} is larger than {self._most >> 20} MiB")
        elif len(answer) == MOST_PIECES:
            self.give_up(f"its answer has more than {MOST_PIECES} pieces")
        elif size > self._file.free_bytes:
            self.give_up("too much is under way")
        if not self.excuse:
            self._held += size
            self._file.free_bytes -= size
            self._pieces[of].append((self._file.now(), piece))

    def give_up(self, why: str) -> None:
        self.excuse = self.excuse or why
        self.release()

    def over(self) -> None:
        if not self.is_over:
            self.give_up("the client left")
        if self.excuse:
            self._file.leave_out(self, self.excuse)
        else:
            self._file.put(self)

    def release(self) -> None:
        self._file.free_bytes += self._held
        self._held = 0
        self._pieces.clear()

    def line(self) -> bytes:
        """Encodes the exchange as a line of the file. recordings.HiddenSecrets: a body cannot be masked."""
        asked, came = self._pieces["request"], self._pieces["answer"]
        asked_as, came_as = (
            recordings.header_of(its, "content-encoding") for its in (self.request_headers, self.headers)
        )
        [body] = recordings.masked_pieces([b"".join(piece for _, piece in asked)], asked_as)
        masked = recordings.masked_pieces([piece for _, piece in came], came_as)
        chunks = [
            recordings.RecordedChunk(round(at_s - self.asked_s, 6), recordings.data_of(piece))
            for (at_s, _), piece in zip(came, masked, strict=True)
        ]
        headers, length = mask_headers(self.headers), sum(map(len, masked))
        if length and not self.is_broken:  # masking may have changed the length; a HEAD request has no body
            headers = [
                (name, str(length) if name.lower() == "content-length" else value) for name, value in headers
            ]
        target, asked_headers = mask_query(self.target), mask_headers(self.request_headers)
        request = recordings.RecordedRequest(self.method, target, asked_headers, recordings.data_of(body))
        head_s, end_s = round(self.head_s - self.asked_s, 6), round(self.end_s - self.asked_s, 6)
        answer = recordings.RecordedAnswer(self.status, headers, head_s, chunks, end_s, self.is_broken)
        return recordings.line_of(
            recordings.Exchange(round(self.at_s - self._file.began_s, 6), request, answer)
        )


ABOUT = """\
Pass requests on to a server (any that speaks like OpenAI's), and keep whole exchanges with the moment of
every chunk (docs/recording.md). Secrets in headers, queries and bodies are masked in the file. It ends with
Ctrl-C or SIGTERM.
"""
STOP_S = 5.0
MIB = 1 << 20
PIECE = 65536
PARTING_S = 0.2
"""Grace in seconds: a client may leave at a stream's last event, before the server ends the answer."""


class RecordingProxy:
    def __init__(
        self, target: http.Target, file: RecordingFile, most_bytes: int = recordings.MOST_BODY_BYTES
    ) -> None:
        self._target, self._file, self._most = target, file, most_bytes

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        """Answers 502 if the server does not answer, and breaks off (ConnectionResetError) if it does."""
        kept = KeptExchange(self._file, environ["REQUEST_METHOD"], environ[http.TARGET], self._most)

        def left() -> None:
            gevent.sleep(PARTING_S)
            kept.give_up("the client left")
            connection.cut()

        with ExitStack() as ends:
            ends.callback(kept.over)
            connection = ends.enter_context(closing(self._target.connection(http.READ_TIMEOUT_S)))
            try:
                connection.connect()
                self._send(connection, kept, environ)
                ends.enter_context(http.watching(environ, left))
                response = connection.getresponse()
            except (OSError, HTTPException, ValueError) as error:
                kept.give_up(why := f"{self._target.url}: {error!r}")
                yield from http.refuse(start_response, "502 Bad Gateway", why)
                return
            kept.head_s = self._file.now()
            left_out = http.HOP_BY_HOP
            if response.length is None or response.status in (204, 304):  # it would break the connection
                left_out = left_out | {"content-length"}
            given = [each for each in response.getheaders() if each[0].lower() not in left_out]
            kept.status, kept.headers = response.status, recordings.sendable(given)
            write = start_response(f"{response.status} {response.reason}", kept.headers)
            write(b"")  # status line and headers leave now
            try:
                for piece in http.pieces_of(response):
                    kept.take("answer", piece)
                    yield piece
                kept.is_over = True
            except ConnectionResetError:
                kept.is_broken = kept.is_over = True
                raise
            finally:
                kept.end_s = self._file.now()

    def _send(self, connection: http.HttpConnection, kept: KeptExchange, environ: WSGIEnvironment) -> None:
        headers = http.request_headers(environ)
        kept.request_headers = list(headers.items())
        headers.pop("accept-encoding", None)  # http.client then asks for none
        length, chunked = environ.get("CONTENT_LENGTH"), "HTTP_TRANSFER_ENCODING" in environ

        def pieces() -> Iterator[bytes]:
            while piece := environ["wsgi.input"].read(PIECE):
                kept.take("request", piece)
                yield piece

        body = pieces() if length or chunked else None
        if length:
            headers["content-length"] = length
        with suppress(BrokenPipeError, ConnectionResetError):  # an early answer may close the connection
            connection.request(kept.method, self._target.prefix + kept.target, body, headers)
        kept.asked_s = self._file.now()


def run(argv: Sequence[str]) -> int:
    flags = FlagParser(prog=f"{COMMAND} record --proxy", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("--proxy", action="store_true", required=True, help=argparse.SUPPRESS)
    add("--target", required=True, metavar="URL", help="the server, such as http://host:8000")
    add("--out", required=True, type=Path, metavar="FILE", help="file to write; it must not be there yet")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where clients come to [127.0.0.1]")
    add("--port", type=whole_number(0, 65535), default=8001, metavar="N", help="0 is any free one [8001]")
    most = recordings.MOST_BODY_BYTES // MIB
    larger = "exchanges with larger bodies pass, and are not kept [8]"
    add("--max-body-mb", type=whole_number(1, most), default=most, metavar="N", help=larger)
    given = flags.parse_args(argv)
    target = http.Target.of(given.target)
    file = RecordingFile(given.out, target.url)
    proxy = RecordingProxy(target, file, given.max_body_mb * MIB)
    server = http.server_of(proxy, given.host, given.port)
    try:
        server.start()
    except OSError as error:
        file.close()
        given.out.unlink()
        raise ConfigError(f"port {given.port}: {error.strerror or error}") from None
    where = f"http://{given.host}:{server.server_port}"
    print(f"{where} passes on to {target.url}, kept in {file.path}", flush=True)
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
