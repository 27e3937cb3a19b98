"""GET /metrics."""

from __future__ import annotations

from flask import Blueprint

from app.http.response import Reply
from app.metrics.exposition import CONTENT_TYPE, Exposition


def blueprint(exposition: Exposition) -> Blueprint:
    routes = Blueprint("metrics", __name__)

    @routes.get("/metrics")
    def metrics() -> Reply:
        """All families in Prometheus' text format."""
        return Reply(exposition.render(), 200, content_type=CONTENT_TYPE)

    return routes
