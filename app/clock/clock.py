"""Time, as everything that waits sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds with one alarm."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def ring_at(self, moment_s: float, alarm: Callable[[], None]) -> None:
        """Call `alarm` once, when `moment_s` has come. A later call replaces an earlier one."""


class VirtualClock:
    """A clock that stands still until it is advanced: an hour of traffic in a second."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._moment: float | None = None
        self._alarm: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self._now

    def ring_at(self, moment_s: float, alarm: Callable[[], None]) -> None:
        self._moment, self._alarm = moment_s, alarm

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, ringing every alarm on the way at its own moment."""
        end = self._now + seconds
        while self._moment is not None and self._moment <= end:
            self._now = max(self._now, self._moment)
            self._moment = None
            self._alarm()
        self._now = end
