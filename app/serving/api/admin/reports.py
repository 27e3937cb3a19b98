"""Reports on the server: health, version, load, metrics, memory, plugins, and the audit of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from app.base.clock.clock import Clock
from app.base.metrics.exposition import CONTENT_TYPE, Exposition
from app.base.metrics.figures import Figures
from app.engine.kvcache.memo import Bounded
from app.serving.api.responder import ServerLoad
from app.serving.faults.audit import AuditReport
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get, probe
from config.plugins import API


class Drains(Protocol):
    """An engine that may be drained."""

    @property
    def draining(self) -> bool: ...

    @property
    def healthy(self) -> bool: ...

    def drain(self) -> None:
        """Stops admitting requests; running ones continue."""


def readiness(service: Drains, clock: Clock, startup_s: float) -> Callable[[], bool]:
    """Returns a check that is true from `startup_s` seconds after now until the server drains."""
    ready_at_s = clock.now() + startup_s
    return lambda: clock.now() >= ready_at_s and service.healthy and not service.draining


def health_routes(
    healthy: Callable[[], bool], ready: Callable[[], bool], load: ServerLoad, vllm_version: str
) -> list[Route]:

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all; 503 while a separate engine process is gone."""
        return Response(b"", 200 if healthy() else 503)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are welcome; 503 while starting up and while draining."""
        return Response(b"", 200 if ready() else 503)

    def version(context: RequestContext) -> Response:
        """The emulated vLLM version."""
        return json_response({"version": vllm_version})

    def server_load(context: RequestContext) -> Response:
        """Requests being answered now; always 0 unless tracking is on."""
        return json_response({"server_load": load.count})

    return [
        probe("/health", health),
        probe("/ping", health, "POST"),
        probe("/health/ready", health_ready),
        probe("/ready", health_ready),
        probe("/version", version),
        probe("/load", server_load),
    ]


ANY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
"""vLLM mounts the metrics as a separate application, which ignores the method."""


def metrics_routes(exposition: Exposition) -> list[Route]:

    def metrics(context: RequestContext) -> Response:
        """All families in Prometheus' text format."""
        return Response(exposition.render(), 200, content_type=CONTENT_TYPE)

    return [Route(methods=ANY_METHOD, path="/metrics", handle=metrics)]


def statistics_routes(figures: Callable[[], Figures]) -> list[Route]:
    """Statistics of a server whose model computes; vLLM has no such route."""

    def stats(context: RequestContext) -> Response:
        """Choices, tokens and mean seconds since the start of this rank, and choices of now."""
        now = figures()
        statistics = {
            "requests_served": int(sum(now.finished.values())),
            "total_tokens_generated": int(now.generated),
            "average_response_time": now.e2e.sum / max(1, sum(now.e2e.counts)),
            "queue_length": int(now.waiting),
            "active_requests": int(now.running),
        }
        return json_response(statistics)

    return [get("/stats", stats)]


Caches = Callable[[], Mapping[str, Bounded]]
"""The caches of a room, by name; some exist only after the start."""


def memory_routes(rooms: Iterable[Caches]) -> list[Route]:
    """`rooms` is read anew at each request: it may grow."""

    def memory(context: RequestContext) -> Response:
        """Bytes of each cache, and their sum."""
        caches = {name: cache for room in rooms for name, cache in room().items()}
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        return json_response(
            {
                "size_bytes": sum(size["size_bytes"] for size in sizes.values()),
                "limit_bytes": sum(size["limit_bytes"] for size in sizes.values()),
                "caches": sizes,
            }
        )

    return [get("/admin/memory", memory)]


def plugin_routes(report: Callable[[], Mapping[str, object]] | None) -> list[Route]:
    """`report` is None where there are no plugins."""

    def plugins(context: RequestContext) -> Response:
        """The plugins, their settings, and how often each hook was asked, failed or held the event loop."""
        return json_response({"api": API, "plugins": []} if report is None else report())

    return [get("/admin/plugins", plugins)]


Report = Callable[[bool], AuditReport]


def verdict_routes(report: Report, restart: Callable[[], None]) -> list[Route]:
    """Returns the routes; `report(True)` gives the verdict as if no client came back any more."""

    def verdict(context: RequestContext) -> Response:
        """Verdict on the clients' behaviour; with `?over=true`, as if no client came back any more."""
        return json_response(report(context.argument("over").lower() in ("1", "true", "yes")))

    def begin_anew(context: RequestContext) -> Response:
        """Restarts the audit, for the next test."""
        restart()
        return json_response(report(False))

    return [
        get("/admin/verdict", verdict),
        Route(methods=("DELETE",), path="/admin/verdict", handle=begin_anew),
    ]
