"""Writes exchanges to a file in the background: no client waits for its disk or its lock."""

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import gevent
from gevent.event import Event

from app.core.base.clock.pause import call_off_hub, is_loop_shared
from app.core.server.middleware.masking import mask_query
from app.extensions.recording.exchange import HiddenSecretsError, RecordingError
from app.extensions.recording.shared_file import LOCK_TIMEOUT_S, FileLockedError, SharedFile

log = logging.getLogger(__name__)
MAX_HELD_BYTES = 256 << 20
"""Most bytes that all exchanges hold, from the request until they are written."""
MAX_WAITING = 10_000
"""Most exchanges that wait to be written; each takes some 5 KB besides its bodies."""
RETRY_S = 0.05
"""Seconds between two attempts to write, while another process holds the lock for long."""
SLOW_DISK_S = 10.0
"""Longest time that an equal request waits for a disk, in seconds."""


class EndedExchange(Protocol):
    """An exchange that has ended, as the writer needs it."""

    excuse: str
    """Reason for dropping the exchange; empty for one to write."""
    method: str
    target: str
    settled: Event
    """Set when the exchange is written or dropped, and when writing takes long."""

    def line(self, began_s: float) -> bytes:
        """Encodes the exchange for a file that began at `began_s`.

        Raises:
            HiddenSecretsError, ValueError: the exchange cannot be written.
        """

    def release(self) -> None:
        """Frees the bodies."""


class RecordingFile:
    """Appends exchanges to a file; `warn` receives a line for each exchange that is dropped.

    The file must be new, unless the recorder `adds` to one. Processes may share it (`SharedFile`).
    While a process holds the lock for long, exchanges wait in memory, up to `max_held_bytes` and
    `MAX_WAITING`. `now` returns monotonic seconds.

    Attributes:
        written: Number of exchanges in the file that this object has written.
        dropped: Number of exchanges that were not written.
        free_bytes: Bytes that exchanges may still hold.
    """

    def __init__(
        self,
        path: Path,
        target: str,
        now: Callable[[], float] = time.monotonic,
        max_held_bytes: int = MAX_HELD_BYTES,
        warn: Callable[[str], None] = log.warning,
        adds: bool = False,
    ) -> None:
        self.path = path
        self.now = now
        self.warn = warn
        self.written = 0
        self.dropped = 0
        self.free_bytes = max_held_bytes
        self._waiting: deque[EndedExchange] = deque()
        """Exchanges to write; the first one is being written."""
        self._line: tuple[float, bytes] | None = None
        """Start of the file, and the line of the first waiting exchange that is encoded for it."""
        self._writer: gevent.Greenlet | None = None
        self._is_locked_out = False
        self._is_closing = False
        try:
            self._file = SharedFile(path, target, now, is_new=not adds)
        except FileExistsError:
            raise RecordingError(f"{path} already exists") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from None

    @property
    def waiting(self) -> int:
        """Number of exchanges that are not written yet."""
        return len(self._waiting)

    def put(self, exchange: EndedExchange) -> None:
        """Writes the exchange soon, in a greenlet; at once where no loop would run the greenlet."""
        if not exchange.excuse and len(self._waiting) >= MAX_WAITING:
            exchange.excuse = f"{MAX_WAITING} exchanges wait to be written"
        if exchange.excuse:
            exchange.release()
            self._drop(exchange, exchange.excuse)
            exchange.settled.set()
            return
        if self._is_locked_out:
            exchange.settled.set()
        self._waiting.append(exchange)
        if not is_loop_shared():
            self._write_waiting()
        elif self._writer is None:
            self._writer = gevent.spawn(self._write_waiting)

    def wait(self) -> None:
        """Waits until the exchanges that have ended are written, unless that takes long."""
        if self._waiting:
            self._waiting[-1].settled.wait(SLOW_DISK_S)

    def start(self) -> None:
        """Does nothing: the file is open already."""

    def close(self) -> None:
        """Writes the waiting exchanges; drops those that cannot be written because of a lock."""
        self._is_closing = True
        self._is_locked_out = False
        if self._writer is not None:
            self._writer.join()
        self._write_waiting()
        self._file.close()

    def _write_waiting(self) -> None:
        """Writes the waiting exchanges one after another.

        While the file is locked, tries again after a pause. Where no loop runs, tries again with
        the next exchange.
        """
        try:
            while self._waiting:
                if self._write_first():
                    continue
                if not is_loop_shared():
                    return
                gevent.sleep(RETRY_S)
        finally:
            self._writer = None

    def _write_first(self) -> bool:
        """Writes or drops the first waiting exchange.

        Returns False if it stays, because the file is locked.
        """
        exchange = self._waiting[0]
        stays = False
        try:
            self._append(exchange)
            self.written += 1
        except FileLockedError:
            stays = not self._is_closing
            if stays:
                self._note_lock()
            else:
                self._is_locked_out = True  # the next exchange does not wait as long again
                self._drop(exchange, "another process has locked the file")
        except (HiddenSecretsError, OSError, ValueError) as error:
            self._drop(exchange, getattr(error, "strerror", None) or str(error))
        finally:
            if not stays:
                self._waiting.popleft()
                self._line = None
                exchange.release()
                exchange.settled.set()
        return not stays

    def _append(self, exchange: EndedExchange) -> None:
        """Encodes the exchange, and appends its line.

        Raises:
            errors of `SharedFile.append` and of `EndedExchange.line`.
        """
        is_written = False
        while not is_written:
            began_s = self._file.began_s
            if self._line is None or self._line[0] != began_s:
                self._line = (began_s, call_off_hub(exchange.line, began_s))
            timeout_s = 0.0 if self._is_locked_out else LOCK_TIMEOUT_S
            is_written = call_off_hub(self._file.append, self._line[1], began_s, timeout_s)
        if self._is_locked_out:
            self._is_locked_out = False
            self.warn(f"{self.path}: the lock is free again; writing {self.waiting} exchanges")

    def _note_lock(self) -> None:
        """Logs that the file is locked, and ends all waits for the exchanges."""
        if self._is_locked_out:
            return
        self._is_locked_out = True
        self.warn(
            f"{self.path}: another process has locked the file for {LOCK_TIMEOUT_S:g} s; "
            "exchanges wait in memory to be written"
        )
        for exchange in self._waiting:
            exchange.settled.set()

    def _drop(self, exchange: EndedExchange, reason: str) -> None:
        self.dropped += 1
        text = f"not kept: {exchange.method} {mask_query(exchange.target)}: {reason}"
        if not text.isprintable():  # a model name must not look like another line
            text = text.encode("unicode_escape").decode()
        self.warn(text)
