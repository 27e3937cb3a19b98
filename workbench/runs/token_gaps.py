"""Times between successive tokens of requests, over all pods of a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from app.shared.statistics import weighted_quantiles

RESOLUTION_S = 1e-5
"""Gaps are rounded to multiples of this time."""


class TokenGaps:
    """Counts the gaps between tokens, by their lengths.

    In a step all decodes have the same gap, so counting costs as much for one as for a thousand.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[int, int] = defaultdict(int)
        """Gaps by their length in units of `RESOLUTION_S`."""

    @property
    def count(self) -> int:
        """Number of gaps."""
        return sum(self._counts.values())

    def add(self, gap_s: float, count: int, end_s: float) -> None:
        """Counts `count` gaps of the same length that end at the same time."""
        self._counts[int(gap_s / RESOLUTION_S + 0.5)] += count

    def merge(self, other: TokenGaps) -> None:
        """Adds the gaps of other pods."""
        for length, count in other._counts.items():
            self._counts[length] += count

    @property
    def mean_s(self) -> float:
        """Mean gap; 0 without gaps. It does not depend on the order of pods."""
        total = sum(length * count for length, count in self._counts.items())
        return total * RESOLUTION_S / max(1, self.count)

    def quantiles_s(self, shares: Sequence[float]) -> Iterator[float]:
        """Yields the gap that exceeds each share of all gaps; `shares` are in ascending order."""
        for length in weighted_quantiles(self._counts.items(), shares):
            yield length * RESOLUTION_S


class LoggedGaps(TokenGaps):
    """Also stores when the gaps end, for a film of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[float, float, int]] = []
        """End, length and number of gaps, in seconds."""

    def add(self, gap_s: float, count: int, end_s: float) -> None:
        """Counts and stores gaps."""
        super().add(gap_s, count, end_s)
        self.log.append((end_s, gap_s, count))
