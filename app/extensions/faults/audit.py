"""The audit of clients as middleware: imports `ClientAudit` at the first failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from app.extensions.faults.injector import FaultInjector
from app.extensions.faults.limits import (
    CLIENT_BYTES,
    FAILED_BODY_BYTES,
    MAX_CLIENTS,
    MAX_FAILED_BODIES,
)

if TYPE_CHECKING:
    from app.extensions.faults.client_audit import AuditReport, ClientAudit


class FaultAudit(Middleware):
    """Passes answers to the audit from the first error or fault on.

    Before, there is no client to judge. `now` returns monotonic seconds, `unix` Unix seconds for
    the report.
    """

    limit_bytes = CLIENT_BYTES * MAX_CLIENTS + FAILED_BODY_BYTES * MAX_FAILED_BODIES

    def __init__(
        self,
        injector: FaultInjector,
        now: Callable[[], float],
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._injector = injector
        self._now = now
        self._unix = unix
        self.restart()

    def restart(self) -> None:
        """Forgets all clients and restarts the counters of the rules."""
        self._injector.restart()
        self._since_s = self._unix()
        self._clients: ClientAudit | None = None
        """None until the first error or fault."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the audit."""
        return 0 if self._clients is None else self._clients.size_bytes

    def end(self, context: RequestContext, response: Response) -> None:
        """Audits an answer at its start. Returns at once until the first failure."""
        if self._clients is None and response.status < 400 and not self._injector.active:
            return
        if context.route is None:
            return
        if not (context.is_generation or "Retry-After" in response.headers):
            return
        if self._clients is None:
            try:
                self._clients = self._new_audit()
            except OSError:  # with too many open files, the module's file cannot be opened
                return
        self._clients.note_response(context, context.route.path, response)

    def report(self, over: bool = False) -> AuditReport:
        """Reports all clients. `over` closes the retry window of every stream."""
        clients = self._clients or self._new_audit()
        return clients.report(over)

    def _new_audit(self) -> ClientAudit:
        from app.extensions.faults.client_audit import ClientAudit

        return ClientAudit(self._now, self._unix, since_s=self._since_s)
