"""The numbers of an engine's batches: which come next, which are missing, which came before."""

from __future__ import annotations

from array import array
from enum import Enum, auto

REMEMBERED = 64
"""Latest batches that are known again when they come twice, or late."""
_MISSING = float("nan")


class Verdict(Enum):
    """What the number of a batch says."""

    FIRST = auto()
    """Nothing came before it from here: apply it, and ask for what was before."""
    NEXT = auto()
    """Apply it."""
    GAP = auto()
    """Some are missing before it."""
    LATE = auto()
    """It was missing and came after all: apply it."""
    DUPLICATE = auto()
    """It was applied: leave it."""
    RESTART = auto()
    """The engine began anew: forget what it had, then apply it."""


class Stream:
    """The batches of one data parallel rank of a pod, told apart by number and time of publication.

    A number at or below the last one is a batch that came before if its time is the same, or if it was part
    of a replay; it was missing if its number was skipped. Otherwise the engine counts anew.
    """

    def __init__(self, applied: int | None = None, last_ts: float = 0.0) -> None:
        """`applied` and `last_ts` are those of a batch that somebody has applied before."""
        self.applied = applied
        """The highest number that was applied."""
        self.received = -1
        """The highest number that came by itself, not in a replay."""
        self.last_ts = last_ts
        self._recent = array("d")

    def judge(self, sequence: int, ts: float) -> Verdict:
        """What to do with a batch that came by itself."""
        if self.applied is None:
            return Verdict.FIRST
        ahead = sequence - self.applied
        if ahead > 0:
            return Verdict.NEXT if ahead == 1 else Verdict.GAP
        if -ahead < len(self._recent):
            known = self._recent[ahead - 1]
            if known == ts:
                return Verdict.DUPLICATE
            if known != known:
                return Verdict.LATE
        if self.received < sequence and ts <= self.last_ts:
            return Verdict.DUPLICATE
        return Verdict.RESTART

    def missing(self, sequence: int) -> int:
        """How many numbers are missing before this one. An engine's first number is 0."""
        return sequence if self.applied is None else max(0, sequence - self.applied - 1)

    def apply(self, sequence: int, ts: float, replayed: bool = False) -> None:
        """The batch has been applied; numbers between the last one and it are missing."""
        if self.applied is None or sequence > self.applied:
            skipped = 0 if self.applied is None else sequence - self.applied - 1
            self._recent.extend([_MISSING] * min(skipped, REMEMBERED))
            self._recent.append(ts)
            del self._recent[:-REMEMBERED]
            self.applied = sequence
        elif self.applied - sequence < len(self._recent):
            self._recent[sequence - self.applied - 1] = ts
        if not replayed:
            self.received = max(self.received, sequence)
        self.last_ts = max(self.last_ts, ts)

    def restart(self) -> None:
        """The engine counts anew."""
        self.applied, self.received, self.last_ts = None, -1, 0.0
        del self._recent[:]

    def skip(self, sequence: int) -> None:
        """A message with this number came, but nothing can be done with it."""
        if self.applied is not None and sequence == self.applied + 1:
            self.apply(sequence, self.last_ts)
