"""When the machine withheld a core: its host ran something else, and everything on the core waited.

A sentinel sleeps half a millisecond at a time on that core, at a real-time priority, so that nothing on
this machine goes before it. When it wakes late, nobody could have run there: what is late at that moment is
the machine's. A server that is late for its own reasons leaves the sentinel on time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.servers import ROOT

STEP_NS = 500_000
USUAL_NS = 150_000
"""What a sleeper that nothing keeps from its core is late here; not told."""
PRIORITY = 50


class Withheld:
    """Spans in which a core ran nothing, Unix time in nanoseconds; complete when the sentinel has ended."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.is_known = False

    def between_ns(self, begin_ns: int, end_ns: int) -> int:
        """How much of this time the core was withheld."""
        spans, first = self.spans, max(0, bisect_right(self.spans, (begin_ns, begin_ns)) - 1)
        lost = 0
        for begun, ended in spans[first:]:
            if begun >= end_ns:
                break
            lost += max(0, min(ended, end_ns) - max(begun, begin_ns))
        return lost

    def warnings(self) -> list[str]:
        return [] if self.is_known else ["what the machine withheld is not known: no real-time priority here"]


@contextmanager
def withheld(core: int) -> Iterator[Withheld]:
    """What is withheld of a core until the end of the block, which fills it in."""
    seen = Withheld()
    words = (sys.executable, "-m", "benchmarks.withheld", str(core))
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # it stands
    try:
        yield seen
    finally:
        process.terminate()
        told, _ = process.communicate()
        seen.is_known = process.returncode == 0
        for line in told.splitlines() if seen.is_known else ():
            begun, ended = map(int, line.split())
            seen.spans.append((begun, ended))


def main(argv: Sequence[str]) -> int:
    """Watch the core whose number is given until SIGTERM; then print the spans, a line each.

    Exit status: 1 where it may not have its priority.
    """
    os.sched_setaffinity(0, {int(argv[0])})
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
    while not is_over:
        time.sleep(max(0, due_ns - time.time_ns()) / 1e9)
        if (now_ns := time.time_ns()) - due_ns > USUAL_NS:
            spans.append((due_ns, now_ns))
        due_ns = now_ns + STEP_NS
    for begun, ended in spans:
        print(begun, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
