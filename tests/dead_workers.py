"""Runs whose workers die (pytest-xdist)."""

from __future__ import annotations

import pytest


class DeadWorkers:
    """Lets a run whose worker has died remember no failed tests.

    Such a run ends early (`--max-worker-restart=0`), so a second try of its failed tests would leave
    out those that it never ran.
    """

    def __init__(self) -> None:
        self._has_died = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        """Notes how a worker ended."""
        self._has_died |= error is not None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Forgets the failed tests, which pytest has stored just before."""
        if self._has_died and session.config.cache is not None:
            session.config.cache.set("cache/lastfailed", {})
