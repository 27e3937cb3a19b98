"""Unix seconds of moments that were measured with a monotonic clock."""

import math
import time
from collections.abc import Callable

RENEWAL_S = 10.0
"""Age of the offset after which it is measured again, as the system's clock may be adjusted."""
MAX_READINGS = 5
"""Most pairs of readings for one offset."""
GOOD_READING_S = 20e-6
"""Time of a pair of readings that is certainly not interrupted, in seconds."""


class WallClock:
    """Converts monotonic seconds to Unix seconds.

    The two clocks are read one after another, and a busy machine may pause the process between the
    readings. The offset is therefore that of the fastest of several pairs.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time
    ) -> None:
        """`now` returns monotonic seconds, `unix` the seconds since 1970."""
        self._now = now
        self._unix = unix
        self._offset_s = 0.0
        self._renewal_s = -math.inf

    def offset_s(self, now_s: float) -> float:
        """Returns the difference from monotonic seconds, now about `now_s`, to Unix seconds."""
        if now_s >= self._renewal_s:
            self._measure()
            self._renewal_s = now_s + RENEWAL_S
        return self._offset_s

    def _measure(self) -> None:
        min_reading_s = math.inf
        for _ in range(MAX_READINGS):
            start_s = self._now()
            unix_s = self._unix()
            end_s = self._now()
            if end_s - start_s < min_reading_s:
                min_reading_s = end_s - start_s
                self._offset_s = unix_s - (start_s + end_s) / 2
            if min_reading_s <= GOOD_READING_S:
                return
