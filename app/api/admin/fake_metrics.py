"""POST /fake_metrics: the fake metrics of a running server (simulator.md 2.1; /admin/config does it, too)."""

from __future__ import annotations

from flask import Blueprint, request

from app.http.body import BodyLimits
from app.http.errors import bad_request
from app.http.response import Reply
from config.fake_metrics import merged
from config.live import LiveSettings

SETTING = "fake-metrics"


def blueprint(body: BodyLimits, live: LiveSettings) -> Blueprint:
    routes = Blueprint("fake_metrics", __name__)

    @routes.post("/fake_metrics")
    def change() -> Reply:
        """Change some keys of the fake metrics: 204, or 400 and no change for anything that is wrong."""
        update = body.read(request.environ)
        try:
            live.change({SETTING: merged(live.current.metrics.fake_metrics, update)})
        except ValueError as error:
            raise bad_request(str(error), SETTING) from None
        return Reply(b"", 204)

    return routes
