"""POST /fake_metrics: the fake metrics of a running server (simulator.md 2.1; /admin/config does it, too)."""

from __future__ import annotations

from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.http.route import Route, post
from config.fake_metrics import merged
from config.live import LiveSettings

SETTING = "fake-metrics"


def routes(body: BodyLimits, live: LiveSettings) -> list[Route]:

    def change(context: RequestContext) -> Response:
        """Change some keys of the fake metrics: 204, or 400 and no change for anything that is wrong."""
        update = body.read(context)
        try:
            live.change({SETTING: merged(live.current.metrics.fake_metrics, update)})
        except ValueError as error:
            raise bad_request(str(error), SETTING) from None
        return Response(b"", 204)

    return [
        post("/fake_metrics", change),
    ]
