"""Reports on the server: health, version, load, metrics, memory, plugins, and the audit of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from uuid import NAMESPACE_URL, uuid5

from app.base.clock.clock import Clock
from app.base.metrics.instruments import CONTENT_TYPE, Exposition
from app.base.metrics.recorder import Figures
from app.engine.kvcache.endpoints import PublisherSettings, of_rank
from app.engine.kvcache.memo import Bounded
from app.serving.api.responder import ServerLoad
from app.serving.faults.injector import AuditReport
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, probe
from config import VLLM_VERSION
from config.plugins import API


class Drains(Protocol):
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


Work = Callable[[RequestContext], object]


def action(operation: str, work: Work) -> Route:
    """Returns the route of "METHOD /path" that answers the JSON that `work` returns, or an empty 200."""

    def handle(context: RequestContext) -> Response:
        answer = work(context)
        return Response() if answer is None else json_response(answer)

    handle.__doc__ = work.__doc__
    method, _, path = operation.partition(" ")
    return Route(methods=(method,), path=path, handle=handle)


def health_routes(healthy: Callable[[], bool], ready: Callable[[], bool], load: ServerLoad) -> list[Route]:

    def health(context: RequestContext) -> Response:
        """200 as long as the process serves at all; 503 while a separate engine process is gone."""
        return Response(b"", 200 if healthy() else 503)

    def health_ready(context: RequestContext) -> Response:
        """200 when requests are welcome; 503 while starting up and while draining."""
        return Response(b"", 200 if ready() else 503)

    def version(context: RequestContext) -> Response:
        """The emulated vLLM version."""
        return json_response({"version": VLLM_VERSION})

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

    def stats(context: RequestContext) -> object:
        """Choices, tokens and mean seconds since the start of this rank, and choices of now."""
        now = figures()
        return {
            "requests_served": int(sum(now.finished.values())),
            "total_tokens_generated": int(now.generated),
            "average_response_time": now.e2e.sum / max(1, sum(now.e2e.counts)),
            "queue_length": int(now.waiting),
            "active_requests": int(now.running),
        }

    return [action("GET /stats", stats)]


Caches = Callable[[], Mapping[str, Bounded]]
"""The caches of a room, by name; some exist only after the start."""


def memory_routes(rooms: Iterable[Caches]) -> list[Route]:
    """`rooms` is read anew at each request: it may grow."""

    def memory(context: RequestContext) -> object:
        """Bytes of each cache, and their sum."""
        caches = {name: cache for room in rooms for name, cache in room().items()}
        sizes = {
            name: {"size_bytes": cache.size_bytes, "limit_bytes": cache.limit_bytes}
            for name, cache in sorted(caches.items())
        }
        sums = {key: sum(size[key] for size in sizes.values()) for key in ("size_bytes", "limit_bytes")}
        return {**sums, "caches": sizes}

    return [action("GET /admin/memory", memory)]


def plugin_routes(report: Callable[[], Mapping[str, object]] | None) -> list[Route]:
    """`report` is None where there are no plugins."""

    def plugins(context: RequestContext) -> object:
        """The plugins, their settings, and how often each hook was asked, failed or held the event loop."""
        return report() if report else {"api": API, "plugins": []}

    return [action("GET /admin/plugins", plugins)]


def verdict_routes(report: Callable[[bool], AuditReport], restart: Callable[[], None]) -> list[Route]:
    """Returns the routes; `report(True)` gives the verdict as if no client came back any more."""

    def verdict(context: RequestContext) -> AuditReport:
        """Verdict on the clients' behaviour; with `?over=true`, as if no client came back any more."""
        return report(context.argument("over").lower() in ("1", "true", "yes"))

    def begin_anew(context: RequestContext) -> AuditReport:
        """Restarts the audit, for the next test."""
        restart()
        return report(False)

    return [action("GET /admin/verdict", verdict), action("DELETE /admin/verdict", begin_anew)]


def publisher_routes(settings: PublisherSettings, enabled: bool, ranks: Iterable[int]) -> list[Route]:
    """GET /kv_event_sources. `settings` belong to rank 0; the endpoints of all `ranks` follow from them."""

    def source(rank: int) -> dict[str, object]:
        endpoint, replay = settings.endpoint, settings.replay_endpoint
        return {
            "enable_kv_cache_events": enabled,
            "publisher": "zmq" if enabled else "null",
            "endpoint": of_rank(endpoint, rank) if endpoint else "",
            "replay_endpoint": of_rank(replay, rank) if replay else "",
            "buffer_steps": settings.replay_batches,
            "hwm": settings.hwm,
            "max_queue_size": settings.queue_events,
            "topic": settings.topic,
        }

    def sources(context: RequestContext) -> object:
        """The publisher of every rank, by its number."""
        return {str(rank): source(rank) for rank in ranks}

    return [action("GET /kv_event_sources", sources)]


def bootstrap_routes(server: str, ranks: int) -> list[Route]:
    """Returns GET /query, as in Mooncake's bootstrap server. `server` is the base URL of rank 0.

    The ids follow from that URL: all ranks, which are separate processes, answer the same.
    """

    def query(context: RequestContext) -> object:
        """The engine of every rank, by its number."""
        ids = (str(uuid5(NAMESPACE_URL, f"{server}/{rank}")) for rank in range(ranks))
        return {str(rank): {"engine_id": engine_id} for rank, engine_id in enumerate(ids)}

    return [action("GET /query", query)]
