"""One limit for all caches whose contents can be computed again."""

from __future__ import annotations

from collections.abc import Iterable

import gevent
from gevent import Greenlet

from app.core.base import Caches, Recomputable

INTERVAL_S = 15.0
"""Seconds between two checks: some caches are created by the first request that needs them."""
KEPT_BYTES = 1 << 18
"""Caches of at most this size keep their entries in any case."""


class CacheBudget:
    """Keeps the limits of all such caches within `budget_bytes` together.

    Each cache is created with the limit at which it works well. If these limits exceed the budget,
    each one is lowered in proportion. `sources` is read at each check: it may grow.

    A large cache that got no entry between two checks shrinks: after a burst of different requests,
    a worker of 60 MiB kept 15 MiB of tools and schemas. Entries in use are computed again.
    """

    def __init__(self, budget_bytes: int, sources: Iterable[Caches]) -> None:
        self._budget_bytes = budget_bytes
        self._sources = sources
        self._greenlet: Greenlet[[], None] | None = None
        self._sizes: dict[int, int] = {}
        """Bytes of each cache at the last check, by the `id` of the cache."""

    def start(self) -> None:
        """Checks now, and regularly from now on."""
        self.enforce()
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Ends the checks."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def enforce(self) -> None:
        """Sets the limits of all caches that exist now, and shrinks those without new entries."""
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
            if KEPT_BYTES < cache.size_bytes == self._sizes.get(id(cache)):
                cache.shrink()
            self._sizes[id(cache)] = cache.size_bytes

    def _run(self) -> None:
        while True:
            gevent.sleep(INTERVAL_S)
            self.enforce()
