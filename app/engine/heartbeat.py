"""The sign of life of an engine in a process of its own: a file that it touches, as gunicorn's workers do.

Without it an engine is missed that is there and does not go on: stopped, swapped out, or in a loop without
an end. Its main loop beats, before each step and each layer of a long one; a thread of its own would beat on
beside a loop that hangs.
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
"""More often it is not written."""
TELL_WHERE: Final = signal.SIGUSR1
"""Has the engine write into its log where all its threads are."""
LONGEST_SILENCE_S: Final = 10.0
"""Of an engine that is taken for healthy; half of the time after which it is killed, if that is less."""


class Heartbeat:
    """Of the engine at `endpoint`. While there is no file nobody waits for it: the model is being loaded."""

    def __init__(self, endpoint: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(endpoint.removeprefix("ipc://") + ".alive")
        self._now = now
        self._next_s = 0.0

    # The engine's side.

    def begin(self) -> None:
        with suppress(OSError):  # no folder: it is the end of all of us
            self._path.touch(mode=0o600)
            self._tell(self._now())

    def beat(self) -> None:
        """Cheap enough for every layer of a model."""
        now_s = self._now()
        if now_s >= self._next_s:
            self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        self._next_s = now_s + EVERY_S
        with suppress(OSError):
            os.utime(self._path, ns=(round(now_s * NS),) * 2)

    def stop(self) -> None:
        """Nobody is to wait for another one."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Around what takes as long as it takes: weights are read."""
        self.stop()
        try:
            yield
        finally:
            self.begin()

    # Who listens.

    def last_s(self) -> float | None:
        """The moment of the last one, in seconds of the monotonic clock; None where none is expected."""
        try:
            return os.stat(self._path).st_mtime_ns / NS
        except OSError:
            return None

    def is_silent(self, limit_s: float) -> bool:
        last_s = self.last_s()
        return last_s is not None and self._now() - last_s > limit_s


class Silence:
    """How long an engine has been silent while its watcher looked on, which may have been stopped as well."""

    def __init__(self, most_between_s: float = 2.0) -> None:
        """What passes between two looks counts for `most_between_s` at most."""
        self._most_between_s = most_between_s
        self._last_s: float | None = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def look(self, last_s: float | None, now_s: float) -> float:
        """Seconds, when the engine's last beat is `last_s`."""
        if last_s is None or last_s != self._last_s:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, self._most_between_s)
        self._last_s, self._looked_s = last_s, now_s
        return self._silent_s
