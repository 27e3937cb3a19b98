"""How clients behaved since the server began to look: the report of GET /admin/verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

from cachetools import LRUCache

from app.clock.pause import pause
from app.faults.client_audit import RETRY_WINDOW_S, ClientAudit, ClientReport, Exchange, timestamp

LIMIT_BYTES = 4 * 2**20
"""Memory of all audits: about 1,000 clients, those that were seen last, are remembered."""
ENTRY_BYTES = 512
"""Memory of an entry without its audit."""
SLICE = 32
"""Clients that are reported at a time."""


class AuditReport(TypedDict):
    """The body of GET /admin/verdict; `since` is ISO 8601 in UTC, clients are by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class AuditTrail:
    """Knows each client from its first error or fault on; before that nothing is kept of it.

    `now` gives Unix seconds, for the report only.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.limit_bytes = LIMIT_BYTES
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._since_s = self._now()
        self._clients: LRUCache[str, ClientAudit]
        self._clients = LRUCache(LIMIT_BYTES, getsizeof=lambda audit: ENTRY_BYTES + audit.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Memory of all audits."""
        return int(self._clients.currsize)

    def begin(self, client: str, exchange: Exchange) -> ClientAudit | None:
        """A request's answer begins. The client's audit; None when there is no reason to look at the end."""
        audit = self._clients.get(client)
        if audit is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            audit = ClientAudit(client, self._now)
        audit.begin(exchange)
        self._clients[client] = audit
        return audit

    def end(
        self, audit: ClientAudit, exchange: Exchange, at_s: float, failed: bool, truncated: bool = False
    ) -> None:
        """What `begin` gave an audit for has ended, as `ClientAudit.end` has it."""
        audit.end(exchange, at_s, failed, truncated)
        if self._clients.get(audit.client) is audit:  # else it is forgotten
            self._clients[audit.client] = audit

    def report(self, now_s: float, over: bool = False) -> AuditReport:
        """All that is known at `now_s` (monotonic); `over`: what was not retried by now never will be."""
        clients = {}
        for number, (client, audit) in enumerate(list(self._clients.items()), 1):
            audit.settle(now_s, 0.0 if over else RETRY_WINDOW_S)
            clients[client] = audit.report()
            if number % SLICE == 0:
                pause()
        clean = not any(report["findings"] for report in clients.values())
        return {"since": timestamp(self._since_s), "clean": clean, "clients": clients}
