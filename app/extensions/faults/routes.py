"""Routes of the verdict on the clients' behavior under faults."""

from msgspec import Struct

from app.core.server.http.context import RequestContext
from app.core.server.http.route import Route, RouteDocs, action
from app.extensions.faults.audit import FaultAudit


class VerdictQuery(Struct):
    """Query of the verdict, for the documentation; the handler reads it without this type."""

    over: bool = False


def routes(audit: FaultAudit) -> list[Route]:
    """Returns the routes that show and restart the audit."""

    def verdict(context: RequestContext) -> object:
        """Verdict on the clients' behavior; `?over=true` assumes that no client will come back."""
        return audit.report(context.query().get("over", "").lower() in ("1", "true", "yes"))

    def restart(context: RequestContext) -> object:
        """Restarts the audit, for the next test."""
        audit.restart()
        return audit.report()

    return [
        action("GET /admin/verdict", verdict, RouteDocs(query=VerdictQuery)),
        action("DELETE /admin/verdict", restart),
    ]
