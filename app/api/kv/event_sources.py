"""GET /kv_event_sources: where each rank publishes its KV events."""

from __future__ import annotations

from collections.abc import Iterable

from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get
from app.kvcache.endpoints import PublisherSettings, of_rank


def routes(settings: PublisherSettings, enabled: bool, ranks: Iterable[int]) -> list[Route]:
    """`settings` are those of rank 0; the endpoints of all `ranks` follow from them."""

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


def _of_rank(endpoint: str | None, rank: int) -> str:
    return of_rank(endpoint, rank) if endpoint else ""
