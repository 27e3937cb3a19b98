"""Heartbeat of an engine process: the engine touches a file, as gunicorn's workers do.

The heartbeat reveals an engine process that exists but hangs: stopped, swapped out, or in an endless loop.
The main loop beats before each step and before each layer of a long step. A separate thread would keep
beating beside a hanging loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

NS: Final = 1_000_000_000
EVERY_S: Final = 0.2
"""Shortest time between two writes, in seconds."""
TELL_WHERE: Final = signal.SIGUSR1
"""Signal on which the engine logs the stacks of all its threads."""
LONGEST_SILENCE_S: Final = 10.0
"""Longest silence of a healthy engine, in seconds; half of `engine-timeout`, if that is less."""


class Heartbeat:
    """Heartbeat of the engine at `endpoint`. Without the file no beat is expected: the model is loading."""

    def __init__(self, endpoint: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(endpoint.removeprefix("ipc://") + ".alive")
        self._now = now
        self._next_s = 0.0

    # Called by the engine.

    def begin(self) -> None:
        with suppress(OSError):  # the folder is gone: the server is shutting down
            self._path.touch(mode=0o600)
            self._tell(self._now())

    def beat(self) -> None:
        """Beats; cheap enough to call for every layer of a model."""
        now_s = self._now()
        if now_s >= self._next_s:
            self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        self._next_s = now_s + EVERY_S
        with suppress(OSError):
            os.utime(self._path, ns=(round(now_s * NS),) * 2)

    def stop(self) -> None:
        """Removes the file, after which no beat is expected."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Expects no beat during work of unknown length, such as reading weights."""
        self.stop()
        try:
            yield
        finally:
            self.begin()

    # Called by the watching processes.

    def last_s(self) -> float | None:
        """Returns the time of the last beat in monotonic seconds; None where none is expected."""
        try:
            return os.stat(self._path).st_mtime_ns / NS
        except OSError:
            return None

    def is_silent(self, limit_s: float) -> bool:
        last_s = self.last_s()
        return last_s is not None and self._now() - last_s > limit_s


class HeartbeatMonitor:
    """Measures an engine's silence as seen by its watcher, which may have been stopped as well."""

    def __init__(self, most_between_s: float = 2.0) -> None:
        """`most_between_s` caps the time that counts between two looks."""
        self._most_between_s = most_between_s
        self._last_s: float | None = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def look(self, last_s: float | None, now_s: float) -> float:
        """Returns the seconds of silence, given the time of the last beat."""
        if last_s is None or last_s != self._last_s:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, self._most_between_s)
        self._last_s, self._looked_s = last_s, now_s
        return self._silent_s
