"""When the machine withheld a core: its host ran something else, and everything on the core waited.

A virtual machine's core that has nothing to do goes to others and comes back milliseconds late; so
the cores are kept busy with work that gives way to any other (`kept_awake`). What is withheld all
the same is seen: a sentinel sleeps half a millisecond at a time on that core, at a real-time
priority, so that nothing on this machine goes before it. When it wakes late, nobody could have run
there: what is late at that moment is the machine's. A server that is late for its own reasons
leaves the sentinel on time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks import cores
from benchmarks.servers import ROOT

STEP_NS = 500_000
USUAL_NS = 150_000
"""What a sleeper that nothing keeps from its core is late here; not told."""
PRIORITY = 50
WATCH = "watch"
SPIN = "spin"


class Withheld:
    """Spans in which a core ran nothing, Unix time in nanoseconds; complete when the sentinel has
    ended.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.is_known = False

    def between_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of this time the core was withheld."""
        spans = self.spans
        first = max(0, bisect_right(self.spans, (begin_ns, begin_ns)) - 1)
        lost = 0
        for begun, ended in spans[first:]:
            if begun >= end_ns:
                break
            lost += max(0, min(ended, end_ns) - max(begun, begin_ns))
        return lost

    def warnings(self) -> list[str]:
        return (
            []
            if self.is_known
            else ["what the machine withheld is not known: no real-time priority here"]
        )


@contextmanager
def withheld(core: int) -> Iterator[Withheld]:
    """What is withheld of a core until the end of the block, which fills it in."""
    seen = Withheld()
    process = _started(WATCH, core)
    assert process.stdout is not None
    process.stdout.readline()  # it stands
    try:
        yield seen
    finally:
        process.terminate()
        output, _ = process.communicate()
        seen.is_known = process.returncode == 0
        for line in output.splitlines() if seen.is_known else ():
            begun, ended = map(int, line.split())
            seen.spans.append((begun, ended))


@contextmanager
def kept_awake() -> Iterator[None]:
    """Until the end of the block the server's and the client's core never run out of work; all else
    goes before it.
    """
    with ExitStack() as stack:
        for core in {cores.SERVER, cores.CLIENT}:
            process = stack.enter_context(_started(SPIN, core))
            stack.callback(process.kill)
        yield


def _started(action: str, core: int) -> subprocess.Popen[str]:
    words = (sys.executable, "-m", "benchmarks.withheld", action, str(core))
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def main(argv: Sequence[str]) -> int:
    """Watch or keep busy the core whose number is given."""
    action, core = argv
    os.sched_setaffinity(0, {int(core)})
    return _watch() if action == WATCH else _spin()


def _spin() -> int:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    parent = os.getppid()
    while os.getppid() == parent:  # who measures may be killed
        pass
    return 0


def _watch() -> int:
    """Until SIGTERM; then print the spans, a line each.

    Exit status: 1 where it may not have its priority.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        print("refused", flush=True)
        return 1
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: is_over.append(number))
    print("watching", flush=True)
    spans: list[tuple[int, int]] = []
    due_ns = time.time_ns() + STEP_NS
    parent = os.getppid()
    while not is_over and os.getppid() == parent:
        time.sleep(max(0, due_ns - time.time_ns()) / 1e9)
        if (now_ns := time.time_ns()) - due_ns > USUAL_NS:
            spans.append((due_ns, now_ns))
        due_ns = now_ns + STEP_NS
    for begun, ended in spans:
        print(begun, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
