"""How clients behaved since the server began to look: the report of GET /admin/verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cachetools import LRUCache

from app.faults.client_audit import RETRY_WINDOW_S, ClientAudit, Exchange
from app.faults.findings import Findings, moment

MOST_CLIENTS = 500
"""Those that were seen last are remembered."""


class Verdict:
    """Knows each client from its first error or fault on; before that nothing is kept of it.

    `now` gives Unix seconds, for the report only.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._since_s = self._now()
        self._clients: LRUCache[str, ClientAudit] = LRUCache(MOST_CLIENTS)

    def asked(self, client: str, exchange: Exchange) -> ClientAudit | None:
        """A request's answer begins. The client's conduct; None when there is no reason to look at it."""
        conduct = self._clients.get(client)
        if conduct is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            conduct = self._clients[client] = ClientAudit(Findings(self._now))
        conduct.asked(exchange)
        return conduct

    def report(self, now_s: float, over: bool = False) -> dict[str, Any]:
        """All that is known at `now_s` (monotonic); `over`: what was not retried by now never will be."""
        for conduct in self._clients.values():
            conduct.settle(now_s, 0.0 if over else RETRY_WINDOW_S)
        clients = {client: _told(conduct) for client, conduct in self._clients.items()}
        return {
            "since": moment(self._since_s),
            "clean": not any(client["findings"] for client in clients.values()),
            "clients": clients,
        }


def _told(conduct: ClientAudit) -> dict[str, Any]:
    return {
        "requests": conduct.requests,
        "errors": {str(status): count for status, count in sorted(conduct.errors.items())},
        "faults": dict(sorted(conduct.faults.items())),
        "disconnects": conduct.disconnects,
        "awaiting_retry": conduct.awaiting_retry,
        "findings": conduct.findings.told(),
    }
