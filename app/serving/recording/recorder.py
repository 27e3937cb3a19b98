"""Asks targets and keeps the exchanges: for the proxy, and for a replay of a recording that grows.

Answers are requested without a content coding, so that secrets can be found. Exchanges are masked, and
appended to the file when they end.
"""

import fcntl
import logging
import mmap
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

import gevent
from gevent.pool import Group

from app.base.clock.pause import call_off_hub
from app.serving.http import client as http
from app.serving.http.connection import Connection
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, not_found, timed_out
from app.serving.middleware.masking import mask_headers, mask_query
from app.serving.recording import exchange as recordings

log = logging.getLogger(__name__)
MOST_HELD_BYTES = 256 << 20
"""Most bytes held by all open exchanges."""
PIECE_BYTES = 200
"""Memory overhead of a part, in bytes."""
MOST_PIECES = 100_000
"""Most parts of a recorded answer; masking and writing more would delay other requests."""


class RecordingFile:
    """Appends exchanges to a file; `warn` receives a line for each that is dropped.

    The file is new, unless the recorder `adds` to one. Processes may share it: each line is one write,
    under a lock of the file (flock).
    """

    def __init__(
        self,
        path: Path,
        target: str,
        now: Callable[[], float] = time.monotonic,
        most_held_bytes: int = MOST_HELD_BYTES,
        warn: Callable[[str], None] = log.warning,
        adds: bool = False,
    ) -> None:
        self.path, self.now, self.warn = path, now, warn
        self.kept = self.left_out = 0
        self.free_bytes = most_held_bytes
        self.began_s = now()
        self._writing = Group()
        try:
            self._file: IO[bytes] = path.open("ab+" if adds else "xb+", buffering=0)
            with locked(self._file):
                self._begin(target)
        except FileExistsError:
            raise recordings.RecordingError(f"{path}: is there already") from None
        except OSError as error:
            raise recordings.RecordingError(f"{path}: cannot be written: {error.strerror or error}") from None

    def _begin(self, target: str) -> None:
        """Writes the header, or goes on behind the last whole line."""
        if not self._file.seek(0, os.SEEK_END):
            began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            header = recordings.Header(recordings.FORMAT, recordings.VERSION, target, began)
            self._file.write(recordings.line_of(header))
            return
        with recordings.opened(str(self.path)) as file:
            began = recordings.read_header(str(self.path), file).began
        with suppress(ValueError):  # an edited moment
            self.began_s -= time.time() - datetime.fromisoformat(began).timestamp()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            self._file.truncate(content.rfind(b"\n") + 1)

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
            with locked(self._file):
                self._append(line)
            self.kept += 1
        except (recordings.HiddenSecrets, OSError, ValueError) as error:
            self.leave_out(exchange, getattr(error, "strerror", None) or str(error))
        finally:
            exchange.release()

    def _append(self, line: bytes) -> None:
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError("there is no room for it")
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise

    def wait(self) -> None:
        """Waits until the exchanges that are over now are written."""
        gevent.joinall([*self._writing])

    def close(self) -> None:
        self._writing.join()
        self._file.close()


@contextmanager
def locked(file: IO[bytes]) -> Iterator[None]:
    """Keeps other processes from writing to the file during the block, which must not pause."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


LEFT = "the client left"


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

    @property
    def client_left(self) -> bool:
        return self.excuse == LEFT

    def begin(self, response: HTTPResponse) -> None:
        """Keeps status and headers, without those that would break the client's connection."""
        self.head_s, self.status = self._file.now(), response.status
        left_out = http.HOP_BY_HOP
        if response.length is None or response.status in (204, 304):
            left_out = left_out | {"content-length"}
        given = [each for each in response.getheaders() if each[0].lower() not in left_out]
        self.headers = recordings.sendable(given)

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
            self.give_up(LEFT)
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


PARTING_S = 0.2
"""Grace in seconds: a client may leave at a stream's last event, before the server ends the answer."""
OWN_HEADERS = http.NOT_FORWARDED.union(("x-admin-key", "x-fault", "x-replay-miss", "x-return-error"))
"""Headers for this server, which no target gets."""


class Upstream:
    """Asks the target for a request's model, and keeps the exchanges in `file`."""

    def __init__(
        self,
        targets: Mapping[str, http.Target],
        file: RecordingFile,
        timeout_s: float = http.READ_TIMEOUT_S,
        most_bytes: int = recordings.MOST_BODY_BYTES,
        has_keys: Callable[[], bool] = lambda: False,
    ) -> None:
        """`targets` are by model; the one of the model "" serves all others.

        `has_keys`: this server has API keys, so a client's key is for this server alone.
        """
        self.targets, self.file = targets, file
        self._timeout_s, self._most, self._has_keys = timeout_s, most_bytes, has_keys

    def start(self) -> None:
        """Does nothing: the file is open already."""

    def close(self) -> None:
        self.file.close()

    def target_of(self, model: str | None) -> http.Target:
        """Returns the target for a model. ApiError 404 without one."""
        target = self.targets.get(model or "") or self.targets.get("")
        if target is None:
            known = ", ".join(self.targets)
            raise not_found(f"No target serves the model `{model or ''}`; targets serve: {known}.", "model")
        return target

    def keep(self, method: str, target: str, headers: Mapping[str, str]) -> KeptExchange:
        kept = KeptExchange(self.file, method, target, self._most)
        kept.request_headers = list(headers.items())
        return kept

    def forwarded(self, context: RequestContext) -> dict[str, str]:
        """Returns the headers for a target: without those for this server, its keys among them."""
        left_out = OWN_HEADERS.union(http.KEYS if self._has_keys() else ())
        return {name: value for name, value in context.headers.items() if value and name not in left_out}

    @contextmanager
    def asked(
        self,
        target: http.Target,
        kept: KeptExchange,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        client: Connection | None,
    ) -> Iterator[HTTPResponse]:
        """Sends a request, and keeps its exchange at the end of the block. ApiError 502 or 504: no answer."""
        connection = target.connection(self._timeout_s)
        # http.client asks for no content coding where the client's header is not passed on.
        given = {name: value for name, value in target.with_key(headers).items() if name != "accept-encoding"}

        def left() -> None:
            gevent.sleep(PARTING_S)
            kept.give_up(LEFT)
            connection.cut()

        with ExitStack() as ends:
            ends.callback(kept.over)
            ends.enter_context(closing(connection))
            try:
                connection.connect()
                with suppress(BrokenPipeError, ConnectionResetError):  # an early answer may close it
                    url = target.prefix + kept.target
                    connection.request(kept.method, url, body, given)
                kept.asked_s = self.file.now()
                ends.enter_context(http.watching(client, left))
                response = connection.getresponse()
            except TimeoutError:
                why = f"{target.url} did not answer within {self._timeout_s:g} s"
                kept.give_up(why)
                raise timed_out(f"{why}.") from None
            except (OSError, HTTPException, ValueError) as error:
                why = f"{target.url} gave no answer: {getattr(error, 'strerror', None) or repr(error)}"
                kept.give_up(why)
                raise ApiError(502, "Bad Gateway", f"{why}.") from None
            kept.begin(response)
            yield response

    def pieces(self, kept: KeptExchange, response: HTTPResponse) -> Iterator[bytes]:
        """Yields the body as it comes. ConnectionResetError when it breaks off, or does not go on in time."""
        try:
            for piece in http.pieces_of(response):
                kept.take("answer", piece)
                yield piece
            kept.is_over = True
        except ConnectionResetError as error:
            if isinstance(error.__cause__, TimeoutError):
                kept.give_up(f"its answer did not go on within {self._timeout_s:g} s")
            kept.is_broken = kept.is_over = True
            raise
        finally:
            kept.end_s = self.file.now()
