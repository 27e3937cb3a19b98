"""One limit for all caches whose contents can be computed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import gevent
from gevent import Greenlet

from app.core.base import Caches, Recomputable

INTERVAL_S = 5.0
"""Seconds between two checks: some caches are created by the first request that needs them."""
KEPT_BYTES = 1 << 18
"""Caches of at most this size keep their entries in any case."""
IDLE_CPU_S = 0.1
"""Most processor time of an idle worker between two checks: some hundred health checks."""
IDLE_CHECKS = 6
"""Number of checks after which the caches of an idle worker shrink."""


class CacheBudget:
    """Keeps the limits of all such caches within `budget_bytes` together.

    Each cache is created with the limit at which it works well. If these limits exceed the budget,
    each one is lowered in proportion. `sources` is read at each check: it may grow.

    The large caches of an idle worker shrink: after a burst of different requests, a worker of 60
    MiB kept 15 MiB of tools and schemas.
    """

    _busy_cpu_s = 0.0
    """Processor time above which the worker is not idle at the next check."""
    _idle_checks = 0
    """Number of checks in a row at which the worker was idle."""

    def __init__(
        self,
        budget_bytes: int,
        sources: Iterable[Caches],
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`cpu_s` returns the processor time of this process so far."""
        self._budget_bytes = budget_bytes
        self._sources = sources
        self._cpu_s = cpu_s
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Checks at the next turn of the hub, and regularly from then on."""
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Ends the checks."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def enforce(self) -> None:
        """Sets the limits of all caches that exist now, and shrinks those of an idle worker."""
        cpu_s = self._cpu_s()
        self._idle_checks += 1
        if cpu_s > self._busy_cpu_s:
            self._idle_checks = 0
        self._busy_cpu_s = cpu_s + IDLE_CPU_S
        caches = [
            cache
            for source in self._sources
            for cache in source().values()
            if isinstance(cache, Recomputable)
        ]
        full_bytes = sum(cache.full_limit_bytes for cache in caches) or 1
        share = min(1.0, self._budget_bytes / full_bytes)
        for cache in caches:
            cache.limit_bytes = int(share * cache.full_limit_bytes)
            if self._idle_checks >= IDLE_CHECKS and cache.size_bytes > KEPT_BYTES:
                cache.shrink()

    def _run(self) -> None:
        while True:
            self.enforce()
            gevent.sleep(INTERVAL_S)
