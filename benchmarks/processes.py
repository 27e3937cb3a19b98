"""What a process has used:

CPU time, time without a core, memory. From Linux's /proc, no sampling.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.core.server.gunicorn.worker import GC_THRESHOLDS

PROC = Path("/proc")
WAITED_LIMIT = 0.03
"""Share of the wall time without a core from which on a figure is disturbed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU, and seconds in which a thread could have run but another process had the
    core.
    """

    cpu_s: float
    waited_s: float

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_s - earlier.cpu_s, self.waited_s - earlier.waited_s)


def collect_as_a_worker() -> None:
    """Have garbage collected here as in a worker of the server:

    what is there now is looked at no more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def usage(pid: int) -> Usage:
    """All threads that live now.

    Without schedstat in the kernel: ticks of 10 ms, and no waiting time.
    """
    try:
        stats = [
            (task / "schedstat").read_text().split()
            for task in (PROC / str(pid) / "task").iterdir()
        ]
    except FileNotFoundError:
        return Usage(_ticks(pid) / os.sysconf("SC_CLK_TCK"), 0.0)
    return Usage(
        sum(int(stat[0]) for stat in stats) / 1e9, sum(int(stat[1]) for stat in stats) / 1e9
    )


def _ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the command's name, which may itself contain spaces."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


@dataclass(slots=True)
class Use:
    """What a process has used in a block, set at the block's end."""

    cpu_s: float = 0.0
    waited_s: float = 0.0
    wall_s: float = 0.0

    def warnings(self, name: str) -> list[str]:
        """What disturbed the process; empty when nothing did."""
        share = self.waited_s / self.wall_s
        if share <= WAITED_LIMIT:
            return []
        return [f"other processes kept {name} from its core for {share:.0%} of the time"]


@contextmanager
def used_by(pid: int) -> Iterator[Use]:
    """Measure a process, all its threads, in the block."""
    use = Use()
    usage_before = usage(pid)
    begun = time.monotonic()
    yield use
    used = usage(pid) - usage_before
    use.cpu_s = used.cpu_s
    use.waited_s = used.waited_s
    use.wall_s = time.monotonic() - begun


def children(pid: int) -> list[int]:
    """Processes that `pid` has started, oldest first."""
    return sorted(child for child in _processes() if _parent(child) == pid)


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _parent(pid: int) -> int | None:
    try:
        return int(_stat(pid)[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def rss_mib(pid: int) -> float:
    """Resident memory, pages that are shared with other processes included."""
    return _rollup_kib(pid, "Rss:") / 1024


def pss_mib(pid: int) -> float:
    """Resident memory; a page that n processes share counts as an n-th."""
    return _rollup_kib(pid, "Pss:") / 1024


def _rollup_kib(pid: int, field: str) -> int:
    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise LookupError(f"no {field} of process {pid}")
