"""GET /kv_event_sources and GET /query: each rank's publisher of KV events, and its engine id."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import NAMESPACE_URL, uuid5

from app.engine.kvcache.endpoints import PublisherSettings, of_rank
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get


def routes(settings: PublisherSettings, enabled: bool, ranks: Iterable[int]) -> list[Route]:
    """Returns the route. `settings` belong to rank 0; the endpoints of all `ranks` follow from `settings`."""

    def kv_event_sources(context: RequestContext) -> Response:
        """The publisher of every rank, by its number."""
        return json_response({str(rank): source(rank) for rank in ranks})

    def source(rank: int) -> dict[str, object]:
        return {
            "enable_kv_cache_events": enabled,
            "publisher": "zmq" if enabled else "null",
            "endpoint": _of_rank(settings.endpoint, rank),
            "replay_endpoint": _of_rank(settings.replay_endpoint, rank),
            "buffer_steps": settings.replay_batches,
            "hwm": settings.hwm,
            "max_queue_size": settings.queue_events,
            "topic": settings.topic,
        }

    return [
        get("/kv_event_sources", kv_event_sources),
    ]


def bootstrap_routes(server: str, ranks: int) -> list[Route]:
    """Returns GET /query, as in Mooncake's bootstrap server. `server` is the base URL of rank 0.

    The ids follow from that URL: all ranks, which are separate processes, answer the same.
    """
    engines = {
        str(rank): {"engine_id": str(uuid5(NAMESPACE_URL, f"{server}/{rank}"))} for rank in range(ranks)
    }

    def query(context: RequestContext) -> Response:
        """The engine of every rank, by its number."""
        return json_response(engines)

    return [get("/query", query)]


def _of_rank(endpoint: str | None, rank: int) -> str:
    return of_rank(endpoint, rank) if endpoint else ""
