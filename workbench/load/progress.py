"""Progress bars of commands."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TextIO

from config.printable import one_line, trusted_stream

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


@dataclass(slots=True)
class _Bar:
    stream: TextIO
    name: str
    total: int
    unit: str
    start_s: float = field(default_factory=time.monotonic)
    bar: Any = None

    def update(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
        elif time.monotonic() - self.start_s > QUIET_S:
            self._open(done)

    def _open(self, done: int) -> None:
        tqdm = import_module("tqdm").tqdm  # takes as long as a short simulation
        # A bar with a delay is not drawn before its start is moved to that of the work.
        bar = self.bar = tqdm(
            desc=one_line(self.name),
            total=self.total,
            unit=f" {self.unit}",
            leave=False,
            file=trusted_stream(self.stream),
            delay=1e-9,
        )
        interval_s = TERMINAL_INTERVAL_S if self.stream.isatty() else LOG_INTERVAL_S
        bar.mininterval = interval_s
        bar.maxinterval = interval_s
        bar.start_t -= time.monotonic() - self.start_s
        bar.n = done
        bar.refresh()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
