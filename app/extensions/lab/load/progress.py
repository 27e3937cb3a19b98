"""Progress bars of commands."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO

Progress = Callable[[int], None]
"""Receives the number of units that are done."""

QUIET_S = 1.0
"""Seconds before a bar appears."""
TERMINAL_INTERVAL_S = 0.2
LOG_INTERVAL_S = 10.0
"""Interval of updates if the stream is not a terminal."""


def ignore_progress(done: int) -> None:
    """Does nothing: the progress of work without a progress bar."""


@contextmanager
def progress_bar(stream: TextIO, name: str, total: int, unit: str) -> Iterator[Progress]:
    """Yields a function that receives the number of units that are done.

    A bar on `stream` shows them after `QUIET_S` seconds, until the block ends.
    """
    bar = _Bar(stream, name, total, unit)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, stream: TextIO, name: str, total: int, unit: str) -> None:
        self._stream = stream
        self._name = name
        self._total = total
        self._unit = unit
        self._start_s = time.monotonic()
        self._bar: Any = None

    def update(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._start_s > QUIET_S:
            self._open(done)

    def _open(self, done: int) -> None:
        tqdm = import_module("tqdm").tqdm  # takes as long as a short simulation
        # A bar with a delay is not drawn before its start is moved to that of the work.
        bar = self._bar = tqdm(
            desc=self._name,
            total=self._total,
            unit=f" {self._unit}",
            leave=False,
            file=self._stream,
            delay=1e-9,
        )
        interval_s = TERMINAL_INTERVAL_S if self._stream.isatty() else LOG_INTERVAL_S
        bar.mininterval = interval_s
        bar.maxinterval = interval_s
        bar.start_t -= time.monotonic() - self._start_s
        bar.n = done
        bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
