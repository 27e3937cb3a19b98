"""Counts the cores that this process may use."""

import os
from contextlib import suppress
from math import inf
from pathlib import Path


def usable_cores() -> int:
    """Returns the cores that affinity and cgroups leave to this process."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, cgroup_cores())))


def cgroup_cores(
    root: Path = Path("/sys/fs/cgroup"), process_file: Path = Path("/proc/self/cgroup")
) -> float:
    """Returns the quota of this process's cgroups in cores, or inf.

    Reads versions 1 and 2: `process_file` lists the process's cgroups below `root`.
    """
    quotas = [inf]
    with suppress(OSError):
        for line in process_file.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / controllers
            folder = top / path.lstrip("/")
            for ancestor in (folder, *folder.parents):
                if ancestor.is_relative_to(top):
                    quotas.append(_quota(ancestor))
    return min(quotas)


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" has no number
        return quota / period
    with suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (int((folder / name).read_text()) for name in names)
        return quota / period if quota > 0 else inf
    return inf
