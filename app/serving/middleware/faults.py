"""Audits how clients handle injected failures, from the first failure on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.serving.faults.audit import AuditReport, AuditTrail, ClientAudit, Exchange
from app.serving.faults.fault import Fault
from app.serving.faults.injector import FaultInjector
from app.serving.http.context import RequestContext, client_name
from app.serving.http.response import CLIENT_GONE, Response, StreamingBody
from app.serving.middleware.stack import Middleware
from config.fault_rules import MissingDoneRule

LONGEST_ID = 128
"""Most characters of a request id in the verdict."""


class FaultAudit(Middleware):
    """Audits how clients handle the failures of `injector`. `now` returns monotonic seconds."""

    def __init__(self, injector: FaultInjector, trail: AuditTrail, now: Callable[[], float]) -> None:
        self.trail = trail
        self._injector = injector
        self._now = now
        self._looks = False
        """True after the first error or fault; before, there is no client to judge."""

    def report(self, over: bool = False) -> AuditReport:
        return self.trail.report(self._now(), over)

    def restart(self) -> None:
        """Forgets all clients and restarts the counters of the rules."""
        self._looks = False
        self.trail.restart()
        self._injector.restart()

    def end(self, context: RequestContext, response: Response) -> None:
        """Audits an answer at its start. Returns at once until the first failure."""
        if response.status < 400 and not self._looks and not self._injector.active:
            return
        route = context.route
        if route is None or not (context.is_generation or "Retry-After" in response.headers):
            return
        self._looks = True
        fault, gone = context.kept(Fault) or Fault(), response.status == CLIENT_GONE
        retry_after = response.headers.get("Retry-After", "")
        exchange = Exchange(
            path=route.path,
            body=None if context.body is None else hash(context.body),
            request_id=(context.request_id or "-")[:LONGEST_ID],
            arrived_s=context.arrival_s,
            answered_s=self._now(),
            status=200 if gone else response.status,
            retry_after_s=float(retry_after) if retry_after.isdecimal() and len(retry_after) < 19 else None,
            fault=fault.name,
        )
        audit = self.trail.begin(client_name(context), exchange)
        if audit is None:
            return
        if isinstance(response.body, StreamingBody):
            response.on_close(partial(self._ended, audit, exchange, response.body))
            return
        audit.disconnects += gone
        if not gone:
            damaged = fault.damage is not None and not isinstance(fault.damage, MissingDoneRule)
            self.trail.end(audit, exchange, exchange.answered_s, exchange.status >= 400 or damaged)

    def _ended(self, audit: ClientAudit, exchange: Exchange, stream: StreamingBody) -> None:
        audit.disconnects += stream.gone
        if not stream.gone:
            self.trail.end(audit, exchange, self._now(), stream.was_damaged, stream.is_cut_off)
