"""Is it there, is it ready, what is it: the small routes that probes and dashboards call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.api.responder import ServerLoad
from app.clock.clock import Clock
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get


class Drains(Protocol):
    """What answers requests, until it is told to take no more."""

    @property
    def draining(self) -> bool: ...

    def drain(self) -> None:
        """Admit no more requests; running ones go on."""


def readiness(service: Drains, clock: Clock, startup_s: float) -> Callable[[], bool]:
    """Ready from `startup_s` after now until the server drains."""
    ready_at_s = clock.now() + startup_s
    return lambda: clock.now() >= ready_at_s and not service.draining


def routes(ready: Callable[[], bool], load: ServerLoad, vllm_version: str) -> list[Route]:

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all."""
        return Response(b"", 200)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are welcome; 503 while starting up and while draining."""
        return Response(b"", 200 if ready() else 503)

    def version(context: RequestContext) -> Response:
        """The vLLM version that is played."""
        return json_response({"version": vllm_version})

    def server_load(context: RequestContext) -> Response:
        """Requests being answered now; always 0 unless tracking is on."""
        return json_response({"server_load": load.count})

    return [
        get("/health", health),
        Route(methods=("GET", "POST"), path="/ping", handle=health),
        get("/health/ready", health_ready),
        get("/ready", health_ready),
        get("/version", version),
        get("/load", server_load),
    ]
