"""Threads of torch on a CPU: how they wait, and how many help beside other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from math import inf
from statistics import median
from typing import Final

SHORT_WAIT: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
"""Variables of OpenMP: a thread waits for others for some 0.4 ms, then it sleeps.

That is longer than the pauses between the products of a small model, as waking a thread takes 50 us
and more. """
CROWDED: Final = 0.4
"""Share of a step that threads waited for a core, above which fewer threads are taken at once."""
SAMPLES: Final = 3
"""Steps with each count that are compared; their median, as single steps may be late."""
BETTER: Final = 0.95
"""Most cost of another count, as a share, to be chosen."""
WORSE: Final = 1.3
"""Rise of the cost, as a factor, after which fewer threads are tried:

some systems count no waits.
"""
FIRST_PAUSE: Final = 32
LONGEST_PAUSE: Final = 1024
"""Steps of a kind between two trials; doubled by each trial in vain."""


def wait_shortly(environ: MutableMapping[str, str]) -> None:
    """Sets `SHORT_WAIT` where the user did not; OpenMP reads it when torch is loaded.

    numba starts torch's threads, too, and would start as many as there are cores.
    """
    for name, value in SHORT_WAIT.items():
        environ.setdefault(name, value)
    if "OMP_NUM_THREADS" in environ:
        environ.setdefault("NUMBA_NUM_THREADS", environ["OMP_NUM_THREADS"])


class KindOfSteps:
    """Steps that are alike: the best count of threads for them, and the trial of another one."""

    def __init__(self, best: int, pause: int) -> None:
        self.best = self.count = best
        """Counts of threads: the chosen one, and that of the next step, which may be a trial."""
        self.costs: deque[float] = deque(maxlen=SAMPLES)
        """The latest costs with `count`."""
        self.level, self.left = inf, pause
        """Cost with `best` at the last trial, and steps until the next trial."""


class ThreadGovernor:
    """Chooses the count of threads for each kind of step, by trials of other counts now and then."""

    def __init__(self, most: int, first: int | None = None) -> None:
        """At most `most` threads are tried; `first` is the count before any trial.

        None: `most` always.
        """
        self.counts = (
            [most] if first is None else sorted({1, most // 2 or 1, max(1, most - 1), most})
        )
        self._first, self._trials, self._pause = max(1, min(first or most, most)), 0, FIRST_PAUSE
        self._kinds: dict[int, KindOfSteps] = {}

    def threads(self, kind: int) -> int:
        """Returns the count for the next step, of this kind."""
        return self._kinds.setdefault(kind, KindOfSteps(self._first, self._pause)).count

    def add(self, kind: int, cost: float, crowded: bool = False) -> None:
        """Learns from a step with the count that `threads` returned; `cost` is in any unit of the
        kind.

        `crowded`: other processes took cores from the threads, which waited for each other.
        """
        its = self._kinds[kind]
        if crowded and its.count > self.counts[0]:
            self._first = max(count for count in self.counts if count < its.count)
            self._pause = (
                FIRST_PAUSE if its.count == its.best else min(2 * self._pause, LONGEST_PAUSE)
            )
            for one in self._kinds.values():
                self._choose(one, min(one.best, self._first))
            return
        its.costs.append(cost)
        its.left -= 1
        if len(its.costs) < SAMPLES:
            return
        typical = median(its.costs)
        if its.count != its.best:
            if is_better := typical < BETTER * its.level:
                its.level = typical
            self._pause = FIRST_PAUSE if is_better else min(2 * self._pause, LONGEST_PAUSE)
            self._first = its.count if is_better else its.best
            self._choose(its, self._first)
        elif its.left <= 0 or typical > WORSE * its.level:
            most = self.counts[-1] if its.left <= 0 else its.best
            self._try(its, typical, [it for it in self.counts if it <= most and it != its.best])

    def _try(self, its: KindOfSteps, level: float, others: list[int]) -> None:
        its.level = level
        if others:
            its.count = others[self._trials % len(others)]
            self._trials += 1
            its.costs.clear()

    def _choose(self, its: KindOfSteps, best: int) -> None:
        its.best = its.count = best
        its.left = self._pause
        its.costs.clear()
