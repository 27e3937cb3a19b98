"""Ends what a run of the tests leaves behind when it is killed, as a cancelled job of CI is.

`watch` starts a watcher beside a pytest process. The watcher waits until that process has ended, and then
kills the processes that it had started: servers are sessions of their own, so nothing else ends them. If
pytest was started by make, the watcher also ends pytest when make has ended. Processes are
found by a mark in their environment, which they inherit. Needs /proc: elsewhere, nothing is watched.

python -I tests/leftovers.py MARK [PID:START ...]: the watcher; its parent is the process that it watches.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "UNDERSTUDY_TEST_RUN"
"""Variable that names the pytest process that started a process, after those that started pytest."""
PROCESSES = Path("/proc")
POLL_S = 0.3
END_LIMIT_S = 5.0
"""Time that pytest has to end its servers itself, after SIGTERM."""
MAX_ROUNDS = 20
"""Limit for processes that start others while they are killed."""


def watch() -> None:
    """Starts the watcher of this process, and marks the processes that it will start."""
    if not (PROCESSES / "self" / "environ").exists():
        return
    outer = os.environ.get(MARK, "")
    mark = f"{outer}/{os.getpid()}.{start_of(os.getpid())}"
    os.environ[MARK] = mark
    makes = [f"{pid}:{start_of(pid)}" for pid in ancestors_up_to_make()]
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    words = [sys.executable, "-I", "-S", __file__, mark, *makes]
    os.posix_spawn(sys.executable, words, {}, file_actions=null, setsid=True)


def start_of(pid: int) -> str | None:
    """Returns the start time of a process in clock ticks since the boot, or None if it has ended."""
    fields = stat_of(pid)
    if fields is None or fields[0] == "Z":
        return None
    return fields[19]


def stat_of(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat after the name of the process, or None if it is gone."""
    try:
        text = (PROCESSES / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def ancestors_up_to_make() -> list[int]:
    """Returns the ancestors of this process up to the outermost make, or none without a make."""
    ancestors: list[int] = []
    count = 0
    pid = os.getppid()
    while pid > 1:
        fields = stat_of(pid)
        if fields is None:
            break
        ancestors.append(pid)
        with suppress(OSError):
            if (PROCESSES / str(pid) / "comm").read_text().strip() in ("make", "gmake"):
                count = len(ancestors)
        pid = int(fields[1])
    return ancestors[:count]


def marked(mark: str) -> Iterator[int]:
    """Yields the processes whose environment has the mark, or a longer one."""
    beginning = f"{MARK}={mark}".encode()
    for folder in PROCESSES.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if any(
                variable == beginning or variable.startswith(beginning + b"/")
                for variable in variables
            ):
                yield int(folder.name)


def kill_marked(mark: str) -> None:
    """Kills the marked processes, and those that they start meanwhile."""
    for _ in range(MAX_ROUNDS):
        pids = [pid for pid in marked(mark) if start_of(pid) is not None]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S / 3)


def end(parent: int) -> None:
    """Ends the watched process: make, which started it, is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + END_LIMIT_S
        with suppress(ProcessLookupError):
            os.kill(parent, number)
        while os.getppid() == parent and time.monotonic() < deadline:
            time.sleep(POLL_S / 3)


def main(argv: Sequence[str]) -> None:
    """Waits for the end of the parent, or of an ancestor of it, and ends what is left."""
    mark, *ancestors = argv
    parent = int(mark.rpartition("/")[2].partition(".")[0])
    starts = {int(pid): start for pid, _, start in (word.partition(":") for word in ancestors)}
    while os.getppid() == parent:
        if any(start_of(pid) != start for pid, start in starts.items()):
            end(parent)
            break
        time.sleep(POLL_S)
    kill_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1:])
