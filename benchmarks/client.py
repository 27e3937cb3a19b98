"""How the client itself did: figures of a client that is late, or has no time left, are its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from benchmarks.arrivals import MS, quantile
from benchmarks.processes import WAITED_LIMIT, used_by

BUSY_LIMIT = 0.85
"""Share of the wall time in CPU from which on the client is taken for the bottleneck."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """`cpu` and `waited` (for a core that others had) are shares of the wall time.

    `lag_p99_ms`: 99 % of all arrivals were looked at within this time.
    """

    cpu: float
    waited: float
    lag_p99_ms: float

    def warnings(self, lag_limit_ms: float = inf) -> list[str]:
        """Why the figures of this run may be the client's and not the server's; empty when all was
        well.
        """
        warnings = []
        if self.cpu > BUSY_LIMIT:
            warnings.append(f"the client is the bottleneck: it used {self.cpu:.0%} of its core")
        if self.lag_p99_ms > lag_limit_ms:
            warnings.append(
                f"the client itself was up to {self.lag_p99_ms:.1f} ms late (p99), seen in the errors"
            )
        if self.waited > WAITED_LIMIT:
            warnings.append(
                f"other processes kept the client from its core for {self.waited:.0%} of the time"
            )
        return warnings


@dataclass(slots=True)
class Watch:
    """Collects what `ClientHealth` is made of, while a `watched` block runs."""

    lags_ns: list[int] = field(default_factory=list)
    """How long after its arrival each piece was looked at, nanoseconds."""
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
    lag_ms = quantile(watch.lags_ns, 0.99) * MS if watch.lags_ns else 0.0
    watch.health = ClientHealth(use.cpu_s / use.wall_s, use.waited_s / use.wall_s, lag_ms)
