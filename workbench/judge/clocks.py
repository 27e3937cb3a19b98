"""Aligns the clock of a load tool with that of the server: `align`.

A request cannot arrive before it is sent, and a token cannot be received before it is sent. Each
request therefore bounds the difference of the clocks from above and from below, and the fastest
ways in both directions give the narrowest bounds, as in NTP. The true difference lies between them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from config import ConfigError
from workbench.judge.matching import Pair

MAX_DRIFT = 1e-3
"""Largest difference in speed of the clocks; NTP changes a clock by at most half of this."""
TOLERANCE_S = 100e-6
"""Contradiction of bounds that rounded moments explain, in seconds."""
SEARCH_STEPS = 60


class Bound(NamedTuple):
    """A bound of the difference at a moment of the tool's clock."""

    moment_s: float
    difference_s: float
    place: str


class Alignment(Struct):
    """Converts moments of the tool to moments of the server."""

    difference_s: float
    """Server minus tool, at `zero_s`."""
    half_width_s: float
    """Greatest error of the difference."""
    drift: float
    """Seconds that the server's clock gains on the tool's in a second."""
    zero_s: float
    is_same_clock: bool
    """Both have Unix times, and no difference at all is possible."""

    def to_server(self, moment_s: float) -> float:
        """Returns a moment of the tool in the clock of the server."""
        return moment_s + self.difference_s + self.drift * (moment_s - self.zero_s)


def align(path: str, pairs: Sequence[Pair], has_unix_times: bool) -> Alignment:
    """Returns the alignment of the clocks.

    Raises:
        ConfigError: No request has moments on both sides, or no difference of the clocks is
            possible.
    """
    uppers, lowers = _bounds(pairs)
    if not lowers:
        raise ConfigError(f"{path}: no request was completed, so there is nothing to compare")
    zero_s = min(bound.moment_s for bound in uppers)
    drift = 0.0
    if _width(uppers, lowers, drift, zero_s) < -TOLERANCE_S:
        drift = _best_drift(uppers, lowers, zero_s)
    width_s = _width(uppers, lowers, drift, zero_s)

    def difference(bound: Bound) -> float:
        return _at_zero(bound, drift, zero_s)

    upper = min(uppers, key=difference)
    lower = max(lowers, key=difference)
    if width_s < -TOLERANCE_S:
        raise ConfigError(
            f"{path}: the clocks in the export and the journal do not match: {_name(upper)} and"
            f" {_name(lower)} are inconsistent by {-1000 * width_s:.1f} ms"
        )
    upper_s = _at_zero(upper, drift, zero_s)
    lower_s = _at_zero(lower, drift, zero_s)
    difference_s = (upper_s + lower_s) / 2
    is_same_clock = (
        has_unix_times and drift == 0.0 and lower_s - TOLERANCE_S <= 0.0 <= upper_s + TOLERANCE_S
    )
    if is_same_clock:
        difference_s = 0.0
    return Alignment(
        difference_s=difference_s,
        half_width_s=max(0.0, width_s) / 2,
        drift=drift,
        zero_s=zero_s,
        is_same_clock=is_same_clock,
    )


def _bounds(pairs: Sequence[Pair]) -> tuple[list[Bound], list[Bound]]:
    uppers = []
    lowers = []
    for tool, served in pairs:
        uppers.append(Bound(tool.send_s, served.arrived_s - tool.send_s, tool.place))
        received = (
            (tool.first_s, served.first_sent_s),
            (tool.received_s, served.last_sent_s),
        )
        for received_s, sent_s in received:
            if received_s is not None and sent_s is not None and not tool.error:
                lowers.append(Bound(received_s, sent_s - received_s, tool.place))
    return uppers, lowers


def _at_zero(bound: Bound, drift: float, zero_s: float) -> float:
    """Returns the bound of the difference at `zero_s`."""
    return bound.difference_s - drift * (bound.moment_s - zero_s)


def _width(uppers: Sequence[Bound], lowers: Sequence[Bound], drift: float, zero_s: float) -> float:
    """Returns the length of the interval of possible differences; negative if there is none."""
    upper_s = min(_at_zero(bound, drift, zero_s) for bound in uppers)
    lower_s = max(_at_zero(bound, drift, zero_s) for bound in lowers)
    return upper_s - lower_s


def _best_drift(uppers: Sequence[Bound], lowers: Sequence[Bound], zero_s: float) -> float:
    """Returns the drift with the widest interval, by ternary search: the width is concave."""
    low = -MAX_DRIFT
    high = MAX_DRIFT
    for _ in range(SEARCH_STEPS):
        third = (high - low) / 3
        if _width(uppers, lowers, low + third, zero_s) < _width(
            uppers, lowers, high - third, zero_s
        ):
            low += third
        else:
            high -= third
    drift = (low + high) / 2
    if math.isclose(abs(drift), MAX_DRIFT, rel_tol=1e-3):
        return 0.0
    return drift


def _name(bound: Bound) -> str:
    return bound.place.rpartition(": ")[2]
