"""How far a long calculation is: a line that is written anew on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 1.0
"""What takes less is not worth a word."""
TERMINAL_EVERY_S = 0.2
LINE_EVERY_S = 10.0


class Progress:
    """Writes to `stream`: `name` and the share that is done, and how long the rest will take."""

    def __init__(
        self, stream: TextIO, name: str, total: int, unit: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._name = name
        self._total = total
        self._unit = unit
        self._now = now
        self._begun_s = now()
        self._next_s = self._begun_s + QUIET_S
        self._terminal = stream.isatty()
        self._width = 0

    def __call__(self, done: int) -> None:
        """So much is done."""
        now_s = self._now()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (TERMINAL_EVERY_S if self._terminal else LINE_EVERY_S)
        spent_s = now_s - self._begun_s
        left = f", {spent_s * max(0, self._total - done) / done:.0f} s left" if done else ""
        text = f"{self._name}: {done:,} of {self._total:,} {self._unit}, {spent_s:.0f} s{left}"
        if self._terminal:
            self._rewrite(text)
        else:
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Leave no line behind on a terminal."""
        if self._terminal and self._width:
            self._rewrite("")

    def _rewrite(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._width)}" + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)
