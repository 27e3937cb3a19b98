"""A clock for tests and small simulations, which stands still until it is advanced."""

from app.core.base.clock.clock import Alarm


class VirtualClock:
    """A clock that stands still until advanced: an hour of traffic in a second."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._moment_s: float | None = None
        self._alarm: Alarm | None = None

    def now(self) -> float:
        """See `Clock`."""
        return self._now

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        """See `Clock`."""
        self._moment_s = moment_s
        self._alarm = alarm

    def advance(self, seconds: float) -> None:
        """Advances by `seconds`, ringing each alarm on the way at its time."""
        end_s = self._now + seconds
        while self._moment_s is not None and self._moment_s <= end_s:
            self._now = max(self._now, self._moment_s)
            self._moment_s = None
            if self._alarm is not None:
                self._alarm()
        self._now = end_s
