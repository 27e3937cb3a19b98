"""POST /fake_metrics; POST /admin/config changes fake metrics, too."""

from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.response import Response
from app.core.server.http.route import ANY_OBJECT, NO_MEDIA, Route, RouteDocs, post
from app.extensions.fake_metrics.document import merged
from app.extensions.fake_metrics.settings import FakeMetricsSettings
from config.validation import LiveSettings

FAKE_METRICS = "fake-metrics"


def fake_metrics_routes(body: BodyLimits, live: LiveSettings) -> list[Route]:
    """Returns POST /fake_metrics; POST /admin/config changes these metrics, too."""

    def change(context: RequestContext) -> Response:
        """Changes some keys of the fake metrics: 204, or 400 and no change for any wrong key."""
        update = body.read(context)
        try:
            present = live.current.section(FakeMetricsSettings).fake_metrics
            live.change({FAKE_METRICS: merged(present, update)})
        except ValueError as error:
            raise bad_request(str(error), FAKE_METRICS) from None
        return Response(b"", 204)

    docs = RouteDocs(
        body=(ANY_OBJECT,),
        example={"running-requests": 3},
        media=NO_MEDIA,
        status=204,
    )
    return [post("/fake_metrics", change, docs=docs)]
