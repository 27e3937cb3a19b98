"""Signs of life of an engine in another process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

NS_PER_S: Final = 1_000_000_000
MIN_INTERVAL_S: Final = 0.2
"""Minimum time between two writes, in seconds."""
DUMP_STACKS_SIGNAL: Final = signal.SIGUSR1
"""Signal on which the engine logs the stacks of all its threads."""
MAX_SILENCE_S: Final = 10.0
"""Maximum silence of a healthy engine, in seconds; half of `engine-timeout`, if that is less."""
EXITING: Final = 1 << 2
"""Linux's flag of a process that exits."""
KILLED: Final = 1 << signal.SIGKILL - 1
"""The bit of a SIGKILL that a process still has to handle."""


class Heartbeat:
    """Heartbeat of the engine at `endpoint`: the modification time of a file.

    Without the file no beat is expected: the model is loading.
    """

    def __init__(self, endpoint: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(endpoint.removeprefix("ipc://") + ".alive")
        self._now = now
        self._next_s = 0.0

    def begin(self) -> None:
        """Expects beats from now on."""
        with suppress(OSError):  # the folder is gone: the server is shutting down
            self._path.touch(mode=0o600)
            self._write(self._now())

    def beat(self) -> None:
        """Beats; cheap enough to call for every layer of a model."""
        now_s = self._now()
        if now_s >= self._next_s:
            self._write(now_s)

    def _write(self, now_s: float) -> None:
        self._next_s = now_s + MIN_INTERVAL_S
        now_ns = round(now_s * NS_PER_S)
        with suppress(OSError):
            os.utime(self._path, ns=(now_ns, now_ns))

    def stop(self) -> None:
        """Expects no more beats."""
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

    def last_s(self) -> float | None:
        """Returns the time of the last beat in monotonic seconds; None if no beat is expected."""
        try:
            return os.stat(self._path).st_mtime_ns / NS_PER_S
        except OSError:
            return None

    def is_silent(self, limit_s: float) -> bool:
        """Returns whether the last beat is longer ago than `limit_s`."""
        last_s = self.last_s()
        return last_s is not None and self._now() - last_s > limit_s


class HeartbeatMonitor:
    """Measures an engine's silence as seen by its watcher, which may have been stopped as well."""

    def __init__(self, max_step_s: float = 2.0) -> None:
        """`max_step_s` caps the time that counts between two looks."""
        self._max_step_s = max_step_s
        self._last_s: float | None = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def look(self, last_s: float | None, now_s: float) -> float:
        """Returns the seconds of silence; `last_s` is the time of the last beat."""
        if last_s is None or last_s != self._last_s:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, self._max_step_s)
        self._last_s = last_s
        self._looked_s = now_s
        return self._silent_s


def is_ending(pid: int) -> bool:
    """Returns whether the process was killed, exits or has ended (Linux only).

    The sockets of such a process stay open until its memory is freed. Returns False on other
    systems, where the connection ends later.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return Path("/proc/self").exists()
    fields = stat[stat.rindex(b")") + 2 :].split()  # from field 3 on, see proc_pid_stat(5)
    return bool(int(fields[6]) & EXITING or int(fields[28]) & KILLED)
