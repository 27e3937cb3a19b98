"""Failures on purpose at the door, and GET and DELETE /admin/verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from flask import Blueprint, Flask, Response, request
from flask.globals import request_ctx

from app.api.responder import CLIENT_GONE
from app.clock.clock import Clock
from app.faults.audit_trail import AuditReport, AuditTrail
from app.faults.client_audit import ClientAudit, Exchange
from app.faults.fault import Fault
from app.faults.plan import FaultPlan
from app.faults.script import RequestFacts
from app.http.environ import ARRIVAL, REQUEST_ID
from app.http.response import Reply, json_reply
from app.middleware.api_keys import bearer
from app.middleware.damage import FAULT, FaultyStream
from config.fault_rules import MissingDoneRule
from config.live import LiveSettings

BODY = "understudy.body_hash"
"""Key of the WSGI environ: a hash of the body that was decoded."""
GENERATING = "understudy.generating"
"""Key of the WSGI environ: the request is for generation."""
BYTES_PER_TOKEN = 4
LONGEST_ID = 128
"""Characters of a request id that are kept for the verdict."""


class Faults:
    """Strikes requests as `plan` says, and tells `trail` how clients bear it. `now`: monotonic seconds."""

    def __init__(self, plan: FaultPlan, trail: AuditTrail, now: Callable[[], float]) -> None:
        self.plan = plan
        self.trail = trail
        self._now = now
        self._looks = False
        """True as soon as there was a fault or an error: only then is there somebody to look at."""

    @classmethod
    def of(cls, live: LiveSettings, rng: Random, clock: Clock) -> Faults:
        """Faults as the settings say, also when they change; `rng` draws them."""
        plan = FaultPlan(rng, clock.now)
        live.subscribe(plan.on_settings)
        return cls(plan, AuditTrail(), clock.now)

    def strike(self, environ: dict[str, Any], model: str | None) -> None:
        """The one decision about a request for generation that has been decoded.

        What happens to its answer is left in `environ` for `faulty_answer`. ApiError when it gets none.
        """
        environ[GENERATING] = True
        if self.plan.is_quiet and not ("HTTP_X_FAULT" in environ or "HTTP_X_RETURN_ERROR" in environ):
            return
        facts = RequestFacts(
            environ["PATH_INFO"],
            model,
            partial(_header, environ),
            partial(client_of, environ),
            (_number(environ.get("CONTENT_LENGTH")) or 0.0) / BYTES_PER_TOKEN,
        )
        fault = self.plan.fault_for(facts)
        if fault is None:
            return
        environ[FAULT] = fault
        self._looks = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error

    def report(self, over: bool = False) -> AuditReport:
        """The verdict now; see `AuditTrail.report`."""
        return self.trail.report(self._now(), over)

    def restart(self) -> None:
        """Forget all clients; rules count from their first request again."""
        self._looks = False
        self.trail.restart()
        self.plan.restart()

    def follow(self, reply: Response) -> Response:
        """After-request hook: an answer begins. Nearly always there is nothing to do."""
        if reply.status_code < 400 and not self._looks:
            return reply
        asked = request_ctx.request
        environ = asked.environ
        if asked.url_rule is not None and (GENERATING in environ or "Retry-After" in reply.headers):
            self._look_at(asked.url_rule.rule, environ, reply)
        return reply

    def _look_at(self, path: str, environ: Mapping[str, Any], reply: Response) -> None:
        self._looks = True
        fault: Fault = environ.get(FAULT) or Fault()
        gone = reply.status_code == CLIENT_GONE
        exchange = Exchange(
            path=path,
            body=environ.get(BODY),
            request_id=environ.get(REQUEST_ID, "-")[:LONGEST_ID],
            arrived_s=environ[ARRIVAL],
            answered_s=self._now(),
            status=200 if gone else reply.status_code,
            retry_after_s=_number(reply.headers.get("Retry-After")),
            fault=fault.name,
        )
        audit = self.trail.begin(client_of(environ), exchange)
        if audit is None:
            return
        if hasattr(reply.response, "gone"):
            reply.call_on_close(partial(self._ended, audit, exchange, reply.response))
            return
        audit.disconnects += gone
        if not gone:
            damaged = fault.damage is not None and not isinstance(fault.damage, MissingDoneRule)
            self.trail.end(audit, exchange, exchange.answered_s, exchange.status >= 400 or damaged)

    def _ended(self, audit: ClientAudit, exchange: Exchange, stream: Any) -> None:
        """A stream of a client that is looked at has ended."""
        audit.disconnects += stream.gone
        if not stream.gone:
            faulty = stream if isinstance(stream, FaultyStream) else None
            failed, cut_off = (faulty.has_struck, faulty.is_cut_off) if faulty else (False, False)
            self.trail.end(audit, exchange, self._now(), failed, cut_off)


def init_faults(app: Flask, faults: Faults) -> None:
    """Follow every answer of `app`, and serve the verdict."""
    app.after_request(faults.follow)
    app.register_blueprint(_blueprint(faults))


def _blueprint(faults: Faults) -> Blueprint:
    routes = Blueprint("faults", __name__)

    @routes.get("/admin/verdict")
    def verdict() -> Reply:
        """How clients behaved; with `?over=true`, as if no client came back any more."""
        over = request.args.get("over", "").lower() in ("1", "true", "yes")
        return json_reply(faults.report(over))

    @routes.delete("/admin/verdict")
    def restart() -> Reply:
        """Begin anew, for the next test."""
        faults.restart()
        return json_reply(faults.report())

    return routes


def client_of(environ: Mapping[str, Any]) -> str:
    """Who asks: a short hash of the API key, or the address. The key itself is never shown."""
    key = bearer(environ) or environ.get("HTTP_X_API_KEY", "").encode("latin-1", "replace")
    if key:
        return "key:" + hashlib.sha256(key).hexdigest()[:12]
    return f"address:{environ.get('REMOTE_ADDR') or 'unknown'}"


def _header(environ: Mapping[str, Any], name: str) -> str | None:
    name = name.upper().replace("-", "_")
    found: str | None = environ.get(name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}")
    return found


def _number(text: str | None) -> float | None:
    """A whole number of a header."""
    return float(text) if text and text.isdecimal() and len(text) < 19 else None
