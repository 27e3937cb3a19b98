"""GET and DELETE /admin/verdict: how clients bear failures on purpose."""

from __future__ import annotations

from collections.abc import Callable

from app.faults.audit_trail import AuditReport
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get

Report = Callable[[bool], AuditReport]


def routes(report: Report, restart: Callable[[], None]) -> list[Route]:
    """`report` gives the verdict, as if no client came back any more when its argument is true."""

    def verdict(context: RequestContext) -> Response:
        """How clients behaved; with `?over=true`, as if no client came back any more."""
        return json_response(report(context.argument("over").lower() in ("1", "true", "yes")))

    def begin_anew(context: RequestContext) -> Response:
        """Begin anew, for the next test."""
        restart()
        return json_response(report(False))

    return [
        get("/admin/verdict", verdict),
        Route(methods=("DELETE",), path="/admin/verdict", handle=begin_anew),
    ]
