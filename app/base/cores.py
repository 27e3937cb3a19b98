"""Counts the cores that this process may use, and the time that it waits for one."""

import os
from contextlib import suppress
from math import inf
from pathlib import Path


def usable_cores() -> int:
    """Returns the cores that affinity and cgroups leave to this process."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, int(min(cores, cgroup_cores())))


def waited_s() -> float:
    """Returns the time that threads of this process waited for a core; 0 where it is unknown."""
    with suppress(OSError):
        files = Path("/proc/self/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0


def cgroup_cores(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
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
