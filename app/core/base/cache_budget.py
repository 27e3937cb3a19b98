"""One limit for all caches whose contents can be computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import gevent
from gevent import Greenlet

from app.core.base import Caches, Recomputable

INTERVAL_S = 5.0
"""Seconds between two checks: some caches are created by the first request that needs them."""


class CacheBudget:
    """Keeps the limits of all such caches within `budget_bytes` together.

    Each cache is created with the limit at which it works well. If these limits exceed the budget,
    each one is lowered in proportion. `sources` is read at each check: it may grow.
    """

    def __init__(self, budget_bytes: int, sources: Iterable[Caches]) -> None:
        self._budget_bytes = budget_bytes
        self._sources = sources
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Sets the limits now, and regularly from now on."""
        self.enforce()
        self._greenlet = gevent.spawn(self._run)

    def close(self) -> None:
        """Ends the checks."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def enforce(self) -> None:
        """Sets the limits of all caches that exist now."""
        caches = list(self._caches())
        wanted_bytes = sum(cache.full_limit_bytes for cache in caches)
        share = min(1.0, self._budget_bytes / max(1, wanted_bytes))
        for cache in caches:
            limit_bytes = int(share * cache.full_limit_bytes)
            if cache.limit_bytes != limit_bytes:
                cache.limit_bytes = limit_bytes

    def _caches(self) -> Iterator[Recomputable]:
        for source in self._sources:
            for cache in source().values():
                # A check of the protocol would compute the size of each cache.
                if hasattr(cache, "full_limit_bytes"):
                    yield cast(Recomputable, cache)

    def _run(self) -> None:
        while True:
            gevent.sleep(INTERVAL_S)
            self.enforce()
