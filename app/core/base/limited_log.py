"""Log lines about foreign data: at most one in an interval, however much arrives."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

INTERVAL_S = 1.0


class LimitedLog:
    """Writes at most one line to `log` in `interval_s` seconds, and drops the others.

    `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        interval_s: float = INTERVAL_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._now = now
        self._next_s = -math.inf

    def begin_line(self) -> bool:
        """Returns whether a line may be written now; if so, an interval begins."""
        now_s = self._now()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True

    def warning(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Logs a warning, with the present exception's traceback if `exc_info`."""
        if self.begin_line():
            self._log.warning(message, *values, exc_info=exc_info)
