"""Token bucket: a rate per minute with a burst, and the exact wait for more."""

import math

ROUNDING_S = 1e-6
"""Tolerance in seconds for requests that rounding makes too early."""


class TokenBucket:
    """Holds up to `burst` tokens (default: a minute's) and gains `per_minute`, evenly.

    Callers pass the time: `now_s` is seconds of a clock that never goes back. The only state is the
    time at which the bucket is full. An idle bucket does no work, and errors do not add up.
    """

    __slots__ = ("_full_at_s", "_token_s", "burst", "per_minute")

    def __init__(self, per_minute: float, burst: float | None = None, now_s: float = 0.0) -> None:
        """Creates a full bucket.

        Raises:
            ValueError: `per_minute` or `burst` is not positive.
        """
        self.per_minute = per_minute
        self.burst = per_minute if burst is None else burst
        if not (self.per_minute > 0 and self.burst > 0):
            raise ValueError("a token bucket requires a positive rate and burst")
        self._token_s = 60.0 / per_minute
        self._full_at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Takes `amount` tokens and returns 0.0.

        If there are fewer, takes nothing and returns the seconds until they are available.
        """
        wait_s = self.wait(amount, now_s)
        if not wait_s:
            self.spend(amount, now_s)
        return wait_s

    def wait(self, amount: float, now_s: float) -> float:
        """Returns the seconds until `amount` is available.

        Returns `math.inf` for more than the bucket can hold.
        """
        wait_s = self._after(amount, now_s) - now_s - self.burst * self._token_s
        if wait_s <= ROUNDING_S:
            return 0.0
        return math.inf if amount > self.burst else wait_s

    def spend(self, amount: float, now_s: float) -> None:
        """Takes `amount` without waiting; the bucket may become negative."""
        self._full_at_s = self._after(amount, now_s)

    def remaining(self, now_s: float) -> float:
        """Returns the number of available tokens."""
        return max(0.0, self.burst - self.full_in(now_s) / self._token_s)

    def full_in(self, now_s: float) -> float:
        """Returns the seconds until the bucket is full."""
        return max(0.0, self._full_at_s - now_s)

    def _after(self, amount: float, now_s: float) -> float:
        return max(self._full_at_s, now_s) + amount * self._token_s
