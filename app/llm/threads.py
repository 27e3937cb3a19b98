"""Threads of torch on a CPU: how they wait, and how many help beside other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from math import inf
from statistics import median
from typing import Final

SHORT_WAIT: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""Variables of OpenMP: a thread waits for others for some 20 us, then it sleeps.

Threads that wait longer take the core from the thread that they wait for, when another process runs beside.
"""
SAMPLES: Final = 3
"""Steps with each count that are compared; their median, as single steps may be late."""
BETTER: Final = 0.95
"""Most cost of another count, as a share, to be chosen."""
WORSE: Final = 1.3
"""Rise of the cost, as a factor, after which other counts are tried at once."""
FIRST_PAUSE: Final = 8
LONGEST_PAUSE: Final = 256
"""Steps between two trials; as many as twice before after each that was in vain."""


def wait_shortly(environ: MutableMapping[str, str]) -> None:
    """Sets `SHORT_WAIT` where the user did not; OpenMP reads it when torch is loaded."""
    for name, value in SHORT_WAIT.items():
        environ.setdefault(name, value)


class KindOfSteps:
    """Steps that are alike: the best count of threads for them, and the trial of another one."""

    def __init__(self, best: int) -> None:
        self.best = self.count = best
        """Counts of threads: the chosen one, and that of the next step, which may be a trial."""
        self.costs: deque[float] = deque(maxlen=SAMPLES)
        """The latest costs with `count`."""
        self.level = inf
        """Cost with `best` at the last trial."""
        self.pause = self.left = FIRST_PAUSE


class ThreadGovernor:
    """Chooses the count of threads for each kind of step, by trials of other counts now and then."""

    def __init__(self, most: int, first: int | None = None) -> None:
        """At most `most` threads are tried; `first` is the count before any trial. None: `most` always."""
        self.counts = [most] if first is None else sorted({1, most // 2 or 1, max(1, most - 1), most})
        self._first, self._trials = max(1, min(first or most, most)), 0
        self._kinds: dict[int, KindOfSteps] = {}

    def threads(self, kind: int) -> int:
        """Returns the count for the next step, of this kind."""
        return self._kinds.setdefault(kind, KindOfSteps(self._first)).count

    def add(self, kind: int, cost: float) -> None:
        """Learns from a step with the count that `threads` returned; `cost` is in any unit of the kind."""
        its = self._kinds[kind]
        its.costs.append(cost)
        its.left -= 1
        typical = median(its.costs) if len(its.costs) == SAMPLES else 0.0
        if its.count != its.best:
            if typical:
                self._end_trial(its, typical)
        elif typical and (its.left <= 0 or typical > WORSE * its.level) and len(self.counts) > 1:
            if typical > WORSE * its.level:
                its.pause = FIRST_PAUSE
            others = [count for count in self.counts if count != its.best]
            its.count, its.level = others[self._trials % len(others)], typical
            self._trials += 1
            its.costs.clear()

    def _end_trial(self, its: KindOfSteps, typical: float) -> None:
        if typical < BETTER * its.level:
            its.best, its.level, its.pause = its.count, typical, FIRST_PAUSE
            self._first = its.best
        else:
            its.pause = min(2 * its.pause, LONGEST_PAUSE)
        its.count, its.left = its.best, its.pause
        its.costs.clear()
