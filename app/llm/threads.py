"""Threads of torch on a CPU: how they wait, and how many help beside other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import median
from typing import Final

SHORT_WAIT: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
"""Variables of OpenMP: a thread waits for others for some 0.4 ms, then it sleeps.

That is longer than the pauses between the products of a small model, as waking a thread takes 50 us and more.
"""
CROWDED: Final = 0.4
"""Share of a step that threads waited for a core, above which fewer threads are taken at once."""
CALM: Final = 32
MOST_CALM: Final = 1024
"""Steps without a crowd until more threads are tried; as many as twice before after each crowd."""
SAMPLES: Final = 3
"""Steps with each count that are compared; their median, as single steps may be late."""
BETTER: Final = 0.95
"""Most cost of another count, as a share, to be chosen."""
FIRST_PAUSE: Final = 8
LONGEST_PAUSE: Final = 256
"""Steps between two trials; as many as twice before after each that was in vain."""


def wait_shortly(environ: MutableMapping[str, str]) -> None:
    """Sets `SHORT_WAIT` where the user did not; OpenMP reads it when torch is loaded."""
    for name, value in SHORT_WAIT.items():
        environ.setdefault(name, value)


def waited_s() -> float:
    """Returns how long this process's threads were ready and had no core, in all; 0 where no kernel tells."""
    with suppress(OSError):
        files = Path("/proc/self/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0


class KindOfSteps:
    """Steps that are alike: the best count of threads for them, and the trial of another one."""

    def __init__(self, best: int) -> None:
        self.best = self.count = best
        """Counts of threads: the chosen one, and that of the next step, which may be a trial."""
        self.costs: deque[float] = deque(maxlen=SAMPLES)
        """The latest costs with `count`."""
        self.level = 0.0
        """Cost with `best` when a trial began."""
        self.pause = self.left = FIRST_PAUSE


class ThreadGovernor:
    """Chooses the count of threads for each kind of step, by trials of other counts now and then."""

    def __init__(self, most: int, first: int | None = None) -> None:
        """At most `most` threads are tried; `first` is the count before any trial. None: `most` always."""
        self.counts = [most] if first is None else sorted({1, most // 2 or 1, max(1, most - 1), most})
        self._first, self._trials = max(1, min(first or most, most)), 0
        self._kinds: dict[int, KindOfSteps] = {}
        self._steps = self._calm_from = 0
        self._calm = CALM

    def threads(self, kind: int) -> int:
        """Returns the count for the next step, of this kind."""
        return self._kinds.setdefault(kind, KindOfSteps(self._first)).count

    def add(self, kind: int, cost: float, crowded: bool = False) -> None:
        """Learns from a step with the count that `threads` returned; `cost` is in any unit of the kind.

        `crowded`: other processes took cores from the threads, which waited for each other.
        """
        its = self._kinds[kind]
        self._steps += 1
        if crowded and its.count > self.counts[0]:
            self._retreat(its)
            return
        its.costs.append(cost)
        its.left -= 1
        typical = median(its.costs) if len(its.costs) == SAMPLES else 0.0
        if its.count != its.best:
            if typical:
                self._end_trial(its, typical)
        elif typical and its.left <= 0:
            self._begin_trial(its, typical)

    def _retreat(self, its: KindOfSteps) -> None:
        """Takes fewer threads for all kinds of steps, and tries no more of them for a while."""
        self._first = max(count for count in self.counts if count < its.count)
        for kind in self._kinds.values():
            if kind.count > self._first:
                kind.count = kind.best = min(kind.best, self._first)
                kind.left = kind.pause
                kind.costs.clear()
        self._calm_from = self._steps + self._calm
        self._calm = min(2 * self._calm, MOST_CALM)

    def _begin_trial(self, its: KindOfSteps, typical: float) -> None:
        most = inf if self._steps >= self._calm_from else its.best
        if others := [count for count in self.counts if count != its.best and count <= most]:
            its.count, its.level = others[self._trials % len(others)], typical
            self._trials += 1
            its.costs.clear()

    def _end_trial(self, its: KindOfSteps, typical: float) -> None:
        if typical < BETTER * its.level:
            self._first = its.best = its.count
            its.pause, self._calm = FIRST_PAUSE, CALM
        else:
            its.pause = min(2 * its.pause, LONGEST_PAUSE)
        its.count, its.left = its.best, its.pause
        its.costs.clear()
