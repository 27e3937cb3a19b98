"""The cores that this process may use, by its affinity and its cgroups."""

import os
from contextlib import suppress
from math import inf
from pathlib import Path

from config.machine import CGROUP_FILE, CGROUP_ROOT, cgroup_folders


def usable_cores() -> int:
    """Returns the cores that affinity and cgroups leave to this process."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, int(min(cores, cgroup_cores())))


def cgroup_cores(root: Path = CGROUP_ROOT, process_file: Path = CGROUP_FILE) -> float:
    """Returns the quota of this process's cgroups in cores, or inf.

    Reads versions 1 and 2: `process_file` lists the process's cgroups below `root`.
    """
    return min([inf, *map(_quota, cgroup_folders("cpu", root, process_file))])


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" has no number
        return quota / period
    with suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (int((folder / name).read_text()) for name in names)
        return quota / period if quota > 0 else inf
    return inf
