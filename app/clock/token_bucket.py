"""A token bucket: what may be used per minute, with a burst, and exactly how long to wait for more."""

from __future__ import annotations

import math

ROUNDING_S = 1e-6
"""Who comes back this much too early, by a rounding of floats, is in time."""


class TokenBucket:
    """Holds `burst` tokens when full (those of one minute unless told) and gains `per_minute`, evenly.

    The caller brings the time: `now_s` is seconds of a clock that never goes back. All that is kept is the
    moment at which the bucket would be full, so nothing runs while nobody asks, and no error adds up.
    """

    __slots__ = ("_full_at_s", "_token_s", "burst", "per_minute")

    def __init__(self, per_minute: float, burst: float | None = None, now_s: float = 0.0) -> None:
        """A full bucket. ValueError unless `per_minute` and `burst` are positive."""
        self.per_minute = per_minute
        self.burst = per_minute if burst is None else burst
        if not (self.per_minute > 0 and self.burst > 0):
            raise ValueError("a token bucket needs a positive rate and burst")
        self._token_s = 60.0 / per_minute
        self._full_at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """0.0 and `amount` tokens are taken; else the seconds until they could be, and nothing is taken."""
        wait_s = self.wait(amount, now_s)
        if not wait_s:
            self.spend(amount, now_s)
        return wait_s

    def wait(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` could be taken; `math.inf` for more than the bucket can ever hold."""
        wait_s = self._after(amount, now_s) - now_s - self.burst * self._token_s
        if wait_s <= ROUNDING_S:
            return 0.0
        return math.inf if amount > self.burst else wait_s

    def spend(self, amount: float, now_s: float) -> None:
        """Take `amount` that has been used already, even if the bucket has to owe it."""
        self._full_at_s = self._after(amount, now_s)

    def remaining(self, now_s: float) -> float:
        """Tokens that could be taken now: from 0 to `burst`."""
        return max(0.0, self.burst - self.full_in(now_s) / self._token_s)

    def full_in(self, now_s: float) -> float:
        """Seconds until the bucket is full, if nothing more is taken."""
        return max(0.0, self._full_at_s - now_s)

    def _after(self, amount: float, now_s: float) -> float:
        """When the bucket would be full again, were `amount` taken now."""
        return max(self._full_at_s, now_s) + amount * self._token_s
