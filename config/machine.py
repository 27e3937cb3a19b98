"""The memory that this process may use, by its machine and its cgroups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")
"""Lists the cgroups of this process, below `CGROUP_ROOT`."""
STATM_FILE = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usable_memory(root: Path = CGROUP_ROOT, process_file: Path = CGROUP_FILE) -> int:
    """Returns the memory that the machine and cgroups leave to this process, in bytes.

    Reads versions 1 and 2 of cgroups: `process_file` lists the process's cgroups below `root`.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES]
    for folder in cgroup_folders("memory", root, process_file):
        limits += _limits(folder)
    return min(limits)


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 on a system without `/proc`."""
    try:
        return int(STATM_FILE.read_bytes().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def cgroup_folders(controller: str, root: Path, process_file: Path) -> Iterator[Path]:
    """Yields the folders of this process's cgroups, the inner ones first."""
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
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" has no number
            yield int((folder / name).read_text())
