"""Threads of torch on a CPU: how they wait, and how many help beside other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from math import inf
from statistics import median
from typing import Final

SHORT_WAIT: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
"""Variables of OpenMP: a thread waits for others for some 0.4 ms, then it sleeps.

That is longer than the pauses between the products of a small model, as waking a thread takes 50 us
and more.
"""
LLAMA_CPP_SPINS: Final = "300000"
"""Turns of a thread of llama.cpp that waits for others, some milliseconds.

That is OpenMP's own default, and longer than the pause between two steps. With fewer turns, threads
beside busy processes sleep hundreds of times in a step, and wake on the core of the other thread.
"""
CROWDED_SHARE: Final = 0.4
"""Share of a step that threads waited for a core, above which fewer threads are used at once."""
SAMPLES: Final = 3
"""Steps with each count that are compared; their median, as single steps may be late."""
BETTER_FACTOR: Final = 0.95
"""Maximum cost of another count, as a share of the present one, to be chosen."""
WORSE_FACTOR: Final = 1.3
"""Rise of the cost, as a factor, after which fewer threads are tried.

Some systems do not count waits.
"""
FIRST_PAUSE: Final = 32
"""Steps of a kind between two trials at first."""
MAX_PAUSE: Final = 1024
"""Maximum steps of a kind between two trials; each failed trial doubles the pause."""


def wait_shortly(environ: MutableMapping[str, str], is_llama_cpp: bool = False) -> None:
    """Sets `SHORT_WAIT` where the user did not; OpenMP reads it when torch is loaded.

    numba starts torch's threads, too, and would start as many as there are cores.
    """
    if is_llama_cpp:
        environ.setdefault("GOMP_SPINCOUNT", LLAMA_CPP_SPINS)
    for name, value in SHORT_WAIT.items():
        environ.setdefault(name, value)
    if "OMP_NUM_THREADS" in environ:
        environ.setdefault("NUMBA_NUM_THREADS", environ["OMP_NUM_THREADS"])


class StepKind:
    """Steps that are alike: the best count of threads for them, and the trial of another one."""

    def __init__(self, best: int, pause: int) -> None:
        self.best = best
        """The chosen count of threads."""
        self.count = best
        """The count of the next step, which may be a trial."""
        self.costs: deque[float] = deque(maxlen=SAMPLES)
        """The latest costs with `count`."""
        self.level = inf
        """Cost with `best` at the last trial."""
        self.steps_to_trial = pause


class ThreadGovernor:
    """Chooses the count of threads for each kind of step, by occasional trials of other counts.

    At most `most` threads are tried. `first` is the count before any trial; without it, the count
    is always `most`.
    """

    def __init__(self, most: int, first: int | None = None) -> None:
        self.counts = [most]
        self._first = most
        if first is not None:
            self.counts = sorted({1, most // 2, most - 1, most} - {0})
            self._first = max(1, min(first, most))
        self._trials = 0
        self._pause = FIRST_PAUSE
        self._kinds: dict[int, StepKind] = {}

    def threads(self, kind: int) -> int:
        """Returns the count for the next step, of this kind."""
        return self._kinds.setdefault(kind, StepKind(self._first, self._pause)).count

    def add(self, kind: int, cost: float, crowded: bool = False) -> None:
        """Learns from a step with the count that `threads` returned.

        `cost` is in any unit of the kind. `crowded` means that other processes took cores from the
        threads, which waited for each other.
        """
        if len(self.counts) == 1:
            return
        steps = self._kinds[kind]
        if crowded and steps.count > self.counts[0]:
            self._shrink(steps)
            return
        steps.costs.append(cost)
        steps.steps_to_trial -= 1
        if len(steps.costs) < SAMPLES:
            return
        level = median(steps.costs)
        if steps.count != steps.best:
            self._end_trial(steps, level)
        elif steps.steps_to_trial <= 0:
            self._start_trial(steps, level, max_count=self.counts[-1])
        elif level > WORSE_FACTOR * steps.level:
            self._start_trial(steps, level, max_count=steps.best)

    def _shrink(self, steps: StepKind) -> None:
        """Uses fewer threads for all kinds of steps."""
        self._first = max(count for count in self.counts if count < steps.count)
        if steps.count == steps.best:
            self._pause = FIRST_PAUSE
        else:
            self._double_pause()
        for kind in self._kinds.values():
            self._choose(kind, min(kind.best, self._first))

    def _start_trial(self, steps: StepKind, level: float, max_count: int) -> None:
        steps.level = level
        others = [count for count in self.counts if count <= max_count and count != steps.best]
        if others:
            steps.count = others[self._trials % len(others)]
            self._trials += 1
            steps.costs.clear()

    def _end_trial(self, steps: StepKind, level: float) -> None:
        if level < BETTER_FACTOR * steps.level:
            steps.level = level
            self._pause = FIRST_PAUSE
            self._first = steps.count
        else:
            self._double_pause()
            self._first = steps.best
        self._choose(steps, self._first)

    def _choose(self, steps: StepKind, best: int) -> None:
        steps.best = best
        steps.count = best
        steps.steps_to_trial = self._pause
        steps.costs.clear()

    def _double_pause(self) -> None:
        self._pause = min(2 * self._pause, MAX_PAUSE)
