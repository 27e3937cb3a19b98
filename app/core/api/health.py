"""Routes that answer while the server runs: health, version, load and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.core.api.responder import ServerLoad
from app.core.base.background import BackgroundLoops
from app.core.base.clock.clock import Clock
from app.core.base.metrics.instruments import CONTENT_TYPE, Exposition
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import EMPTY_ANSWER, Route, post, probe

METRICS = "/metrics"
ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
"""vLLM mounts the metrics as a separate application, which ignores the method."""


class Drains(Protocol):
    """A service that can be drained."""

    withdrawn: bool

    @property
    def draining(self) -> bool:
        """No requests are admitted any more."""

    @property
    def healthy(self) -> bool:
        """Requests can be answered."""

    @property
    def is_generating(self) -> bool:
        """Requests run or wait."""

    def drain(self) -> None:
        """Stops admitting requests."""

    def shut_down(self) -> None:
        """Stops admitting requests, with vLLM's error."""

    def fail(self) -> None:
        """Fails the requests that run or wait."""


def readiness(
    service: Drains, clock: Clock, startup_s: float, loops: BackgroundLoops
) -> Callable[[], bool]:
    """Returns a check that is true from `startup_s` seconds after now until `service` withdraws.

    The check is false while one of the `loops` waits for its restart.
    """
    ready_at_s = clock.now() + startup_s

    def is_ready() -> bool:
        is_ending = service.withdrawn or service.draining
        is_running = service.healthy and loops.are_running
        return clock.now() >= ready_at_s and is_running and not is_ending

    return is_ready


def health_routes(
    healthy: Callable[[], bool], ready: Callable[[], bool], load: ServerLoad, release: str
) -> list[Route]:
    """Returns the routes of health, version and load; `release` is the version to report."""

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all; 503 while a separate engine process is gone."""
        return Response(b"", 200 if healthy() else 503)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are admitted; 503 at the start, while draining, and without a loop."""
        return Response(b"", 200 if ready() else 503)

    def version(context: RequestContext) -> Response:
        """The simulated version of vLLM."""
        return json_response({"version": release})

    def server_load(context: RequestContext) -> Response:
        """Requests being answered now; always 0 unless tracking is on."""
        return json_response({"server_load": load.count})

    return [
        probe("/health", health, docs=EMPTY_ANSWER),
        probe("/ping", health, docs=EMPTY_ANSWER),
        post("/ping", health, docs=EMPTY_ANSWER),
        probe("/health/ready", health_ready, docs=EMPTY_ANSWER),
        probe("/ready", health_ready, docs=EMPTY_ANSWER),
        probe("/version", version),
        probe("/load", server_load),
    ]


def metrics_routes(exposition: Exposition) -> list[Route]:
    """Returns the route of the metrics."""

    def metrics(context: RequestContext) -> Response:
        """All families in Prometheus' text format; a length only for GET of the exact path."""
        is_plain = context.method == "GET" and context.path == METRICS
        return Response(exposition.render(), 200, content_type=CONTENT_TYPE, streamed=not is_plain)

    return [Route(methods=ANY_METHOD, path=METRICS, handle=metrics)]
