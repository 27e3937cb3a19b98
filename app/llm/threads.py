"""Threads of torch on a CPU: how many there are, and how many help beside other processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import MutableMapping
from contextlib import suppress
from math import inf
from pathlib import Path
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


def usable_cores() -> int:
    """Returns the cores that affinity and cgroups leave to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cgroup_cores())))


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Returns the quota of this process's cgroups, versions 1 and 2, in cores; inf without one."""
    quotas = [inf]
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / controllers
            folder = top / path.lstrip("/")
            quotas += [_quota(it) for it in (folder, *folder.parents) if it.is_relative_to(top)]
    return min(quotas)


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # or max and a period
        return quota / period
    with suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (int((folder / name).read_text()) for name in names)
        return quota / period if quota > 0 else inf
    return inf


class KindOfSteps:
    """The best count for steps that are alike, and their cost."""

    def __init__(self, best: int) -> None:
        self.best, self.trial = best, best
        """Counts of threads: chosen, and tried next; the same when none is tried."""
        self.level = inf
        """Cost when counts were compared last."""
        self.pause = self.left = FIRST_PAUSE
        self.costs: deque[float] = deque(maxlen=SAMPLES)
        self.tried: list[float] = []


class ThreadGovernor:
    """Chooses the count of threads for each kind of step, by trials of other counts now and then."""

    def __init__(self, most: int, first: int) -> None:
        """At most `most` threads are tried; `first` is the count before any trial."""
        self.counts = sorted({1, most // 2 or 1, max(1, most - 1), most})
        self._first, self._kinds = max(1, min(first, most)), dict[int, KindOfSteps]()
        self._number = 0

    def threads(self, kind: int) -> int:
        """Returns the count for the next step, of this kind."""
        its = self._kinds.setdefault(kind, KindOfSteps(self._first))
        if its.trial == its.best and its.left <= 0 and len(self.counts) > 1:
            self._number += 1
            others = [count for count in self.counts if count != its.best]
            its.trial, its.tried = others[self._number % len(others)], []
        return its.trial

    def add(self, kind: int, cost: float) -> None:
        """Learns from a step with the count that `threads` returned; `cost` is in any unit of the kind."""
        its = self._kinds[kind]
        if its.trial != its.best:
            its.tried.append(cost)
            if len(its.tried) == SAMPLES:
                self._compare(its)
            return
        its.costs.append(cost)
        its.left -= 1
        if len(its.costs) == SAMPLES and median(its.costs) > WORSE * its.level:
            its.level, its.pause, its.left = median(its.costs), FIRST_PAUSE, 0

    def _compare(self, its: KindOfSteps) -> None:
        if median(its.tried) < BETTER * median(its.costs):
            its.best, its.pause = its.trial, FIRST_PAUSE
            its.costs.extend(its.tried)
            self._first = its.best
        else:
            its.pause = min(2 * its.pause, LONGEST_PAUSE)
            its.trial = its.best
        its.level, its.left = median(its.costs), its.pause
