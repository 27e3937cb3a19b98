"""The file of a running recording: masks and appends exchanges, and limits the memory of open exchanges."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gevent.pool import Group
from gevent.threadpool import ThreadPool

from app.serving.middleware.masking import mask_query
from app.serving.recording.exchange import (
    FORMAT,
    VERSION,
    Answer,
    Chunk,
    Exchange,
    Header,
    HiddenSecrets,
    RecordingError,
    Request,
    data_of,
    header_of,
    line_of,
    masked_headers,
    masked_pieces,
)

MOST_HELD_BYTES = 256 << 20
"""Most bytes held by all open exchanges."""
PIECE_BYTES = 200
"""Memory overhead of a part, in bytes."""
MOST_PIECES = 100_000
"""Most parts of a recorded answer; masking and writing more would delay other requests."""


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class RecordingFile:
    """Appends exchanges to a new file at `path`; `now` returns monotonic seconds.

    RecordingError: the file exists or cannot be created. `tell` receives a line for each dropped exchange.
    """

    def __init__(
        self,
        path: Path,
        target: str,
        now: Callable[[], float] = time.monotonic,
        most_held_bytes: int = MOST_HELD_BYTES,
        tell: Callable[[str], None] = _tell,
    ) -> None:
        self.path = path
        self.kept = self.left_out = 0
        self.began_s = now()
        self._free = most_held_bytes
        self._tell = tell
        self._writing = Group()
        self._disk = ThreadPool(1)
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._file: BinaryIO = path.open("xb", buffering=0)
            self._end = self._file.write(line_of(Header(FORMAT, VERSION, target, began)))
        except FileExistsError:
            raise RecordingError(f"{path}: is there already") from None
        except OSError as error:
            raise RecordingError(f"{path}: cannot be written: {error.strerror or error}") from None

    def hold(self, size: int) -> bool:
        """Reserves `size` bytes, or frees them if negative. False when too few are free."""
        if self._free < size:
            return False
        self._free -= size
        return True

    def put(self, exchange: KeptExchange) -> None:
        """Writes the exchange in its own greenlet, so that the client does not wait."""
        self._writing.spawn(self._write, exchange)

    def leave_out(self, what: str, why: str) -> None:
        self.left_out += 1
        self._tell(f"not kept: {what}: {why}")

    def _write(self, exchange: KeptExchange) -> None:
        try:
            line = exchange.line()
            # One thread writes line after line: a slow disk must not delay the event loop, which takes the
            # times.
            if why := self._disk.apply(self._append, (line,)):
                raise OSError(why)
            self.kept += 1
        except (HiddenSecrets, OSError, ValueError) as error:
            self.leave_out(exchange.name, str(error))
        finally:
            exchange.release()

    def _append(self, line: bytes) -> str:
        """Appends the whole line or nothing: a partial line would spoil the next. Returns the error; empty
        on success.
        """
        try:
            if self._file.write(line) == len(line):
                self._end += len(line)
                return ""
            why = "there is no room for it"
        except OSError as error:
            why = error.strerror or str(error)
        with suppress(OSError):
            self._file.truncate(self._end)
            self._file.seek(self._end)
        return why

    def close(self) -> None:
        self._writing.join()
        self._disk.kill()
        self._file.close()


class KeptExchange:
    """An exchange in progress. Holds the parts received so far while each body is within `most_bytes`.

    Call `sent` and `came` with each part as it arrives. Times come from the file's `now`.
    """

    def __init__(self, file: RecordingFile, method: str, target: str, most_bytes: int, at_s: float) -> None:
        self.name = f"{method} {mask_query(target)}"
        self.excuse = ""
        """Reason for dropping the exchange; empty while it is recorded."""
        self.request_headers: list[tuple[str, str]] = []
        self.headers: list[tuple[str, str]] = []
        self.status = 0
        self.asked_s = self.head_s = self.end_s = at_s
        self.is_broken = self.is_over = False
        """`is_broken`: the answer broke off. `is_over`: the answer ended or broke off."""
        self._file = file
        self.method = method
        self._target, self._at_s = target, at_s
        self._most = most_bytes
        self._body: list[bytes] = []
        self._pieces: list[tuple[float, bytes]] = []
        self._held = 0
        self._sizes = {"request": 0, "answer": 0}

    def sent(self, piece: bytes) -> None:
        """Keeps a part of the request's body."""
        if self._fits("request", piece):
            self._body.append(piece)

    def came(self, at_s: float, piece: bytes) -> None:
        """Keeps a part of the answer's body."""
        if self._fits("answer", piece):
            self._pieces.append((at_s, piece))

    def _fits(self, of: str, piece: bytes) -> bool:
        if self.excuse:
            return False
        self._sizes[of] += len(piece)
        if self._sizes[of] > self._most:
            self.give_up(f"its {of} is larger than {self._most >> 20} MiB")
        elif len(self._pieces) == MOST_PIECES:
            self.give_up(f"its answer has more than {MOST_PIECES} pieces")
        elif not self._file.hold(len(piece) + PIECE_BYTES):
            self.give_up("too much is under way")
        else:
            self._held += len(piece) + PIECE_BYTES
        return not self.excuse

    def give_up(self, why: str) -> None:
        self.excuse = self.excuse or why
        self.release()

    def over(self) -> None:
        """Writes the exchange, or reports why it is dropped."""
        if not self.is_over:
            self.give_up("the client left")
        if self.excuse:
            self._file.leave_out(self.name, self.excuse)
        else:
            self._file.put(self)

    def release(self) -> None:
        self._file.hold(-self._held)
        self._held = 0
        self._body, self._pieces = [], []

    def line(self) -> bytes:
        """Encodes the exchange as a line of the file. HiddenSecrets: a body cannot be masked."""
        asked_s = self.asked_s
        coding = header_of(self.request_headers, "content-encoding")
        [body] = masked_pieces([b"".join(self._body)], coding)
        coding = header_of(self.headers, "content-encoding")
        came = masked_pieces([piece for _, piece in self._pieces], coding)
        chunks = [
            Chunk(round(at_s - asked_s, 6), data_of(content))
            for (at_s, _), content in zip(self._pieces, came, strict=True)
        ]
        headers = masked_headers(self.request_headers)
        request = Request(self.method, mask_query(self._target), headers, data_of(body))
        headers = masked_headers(self.headers)
        length = sum(map(len, came))
        if length and not self.is_broken:  # without a body: such as the answer to a HEAD request
            # Masking may have changed the length.
            headers = [
                (name, str(length) if name.lower() == "content-length" else value) for name, value in headers
            ]
        answer = Answer(
            self.status,
            headers,
            round(self.head_s - asked_s, 6),
            chunks,
            round(self.end_s - asked_s, 6),
            self.is_broken,
        )
        return line_of(Exchange(round(self._at_s - self._file.began_s, 6), request, answer))
