"""The cores and the memory that this process may use, by its machine and its cgroups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")
"""Lists the cgroups of this process, below `CGROUP_ROOT`."""
MEMORY_FILE = Path("/proc/meminfo")
UNKNOWN_MEMORY_BYTES = 4 << 30
"""Assumed where the system does not tell its memory."""


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
    return min([inf, *map(_quota, _folders("cpu", root, process_file))])


def usable_memory(
    root: Path = CGROUP_ROOT, process_file: Path = CGROUP_FILE, memory_file: Path = MEMORY_FILE
) -> int:
    """Returns the memory that the machine and cgroups leave to this process, in bytes.

    Reads versions 1 and 2 of cgroups, as `cgroup_cores` does.
    """
    limits = [limit for folder in _folders("memory", root, process_file) for limit in _limits(folder)]
    with suppress(OSError, ValueError, StopIteration):
        lines = memory_file.read_text().splitlines()
        total = next(line for line in lines if line.startswith("MemTotal:"))
        limits.append(int(total.split()[1]) << 10)
    return min(limits, default=UNKNOWN_MEMORY_BYTES)


def _folders(controller: str, root: Path, process_file: Path) -> Iterator[Path]:
    """Yields the folders of this process's cgroups, and of those around them."""
    with suppress(OSError, ValueError):
        for line in process_file.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / controllers
            folder = top / path.lstrip("/")
            for ancestor in (folder, *folder.parents):
                if ancestor.is_relative_to(top):
                    yield ancestor


def _limits(folder: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" has no number
            yield int((folder / name).read_text())


def _quota(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" has no number
        return quota / period
    with suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (int((folder / name).read_text()) for name in names)
        return quota / period if quota > 0 else inf
    return inf
