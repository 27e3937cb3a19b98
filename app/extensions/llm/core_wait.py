"""The time that this process waits for a core."""

from contextlib import suppress
from pathlib import Path


def core_wait_s() -> float:
    """Returns the time that threads of this process waited for a core; 0 where it is unknown."""
    with suppress(OSError):
        files = Path("/proc/self/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0
