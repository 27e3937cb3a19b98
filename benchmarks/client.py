"""How the client itself did: figures of a client that is late, or has no time left, are its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.processes import WAITED_LIMIT, used_by

BUSY_LIMIT = 0.85
"""Share of the wall time in CPU from which on the client is taken for the bottleneck."""
LAG_LIMIT_MS = 1.0
"""Own lateness at p99 that would be seen in the figures."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """`cpu` and `waited` are shares of the wall time.

    `lag_p99_ms`: 99 % of the arrivals were time-stamped at most this long after the client woke up for them.
    """

    cpu: float
    waited: float
    lag_p99_ms: float

    def warnings(self, lag_matters: bool = True) -> list[str]:
        """Why the figures of this run may be the client's and not the server's; empty when all was well."""
        found = []
        if self.cpu > BUSY_LIMIT:
            found.append(f"the client is the bottleneck: it used {self.cpu:.0%} of its core")
        if lag_matters and self.lag_p99_ms > LAG_LIMIT_MS:
            found.append(f"the client itself is up to {self.lag_p99_ms:.1f} ms late (p99)")
        if self.waited > WAITED_LIMIT:
            found.append(f"other processes kept the client from its core for {self.waited:.0%} of the time")
        return found


@dataclass(slots=True)
class Watch:
    """Collects what `ClientHealth` is made of, while a `watched` block runs."""

    wakes: list[tuple[int, int]] = field(default_factory=list)
    """(arrivals, nanoseconds that they took) each time that the client woke up."""
    health: ClientHealth = ClientHealth(0.0, 0.0, 0.0)


@contextmanager
def watched() -> Iterator[Watch]:
    """Measure this process in the block, its garbage collector off; `health` is set at the end."""
    watch = Watch()
    gc.collect()
    gc.disable()
    try:
        with used_by(os.getpid()) as use:
            yield watch
    finally:
        gc.enable()
    watch.health = ClientHealth(use.cpu_s / use.wall_s, use.waited_s / use.wall_s, lag_p99_ms(watch.wakes))


def lag_p99_ms(wakes: Sequence[tuple[int, int]]) -> float:
    """Milliseconds within which 99 % of all arrivals were looked at, counted from the wake-up; 0 without any.

    Each arrival is charged with the whole time of its wake-up, so this is an upper bound.
    """
    left = sum(arrivals for arrivals, _ in wakes) / 100
    for arrivals, took_ns in sorted(wakes, key=lambda wake: -wake[1]):
        left -= arrivals
        if left < 0:
            return took_ns / 1e6
    return 0.0
