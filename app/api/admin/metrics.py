"""GET /metrics."""

from __future__ import annotations

from app.http.context import RequestContext
from app.http.response import Response
from app.http.route import Route, get
from app.metrics.exposition import CONTENT_TYPE, Exposition


def routes(exposition: Exposition) -> list[Route]:

    def metrics(context: RequestContext) -> Response:
        """All families in Prometheus' text format."""
        return Response(exposition.render(), 200, content_type=CONTENT_TYPE)

    return [
        get("/metrics", metrics),
    ]
