"""GET /kv_event_sources: where each rank publishes its KV events."""

from __future__ import annotations

from collections.abc import Iterable

from flask import Blueprint

from app.http.response import Reply, json_reply
from app.kvcache.endpoints import of_rank
from app.kvcache.publisher import PublisherSettings


def blueprint(settings: PublisherSettings, enabled: bool, ranks: Iterable[int]) -> Blueprint:
    """`settings` are those of rank 0; the endpoints of all `ranks` follow from them."""
    routes = Blueprint("kv_events", __name__)

    @routes.get("/kv_event_sources")
    def kv_event_sources() -> Reply:
        """The publisher of every rank, by its number."""
        return json_reply({str(rank): source(rank) for rank in ranks})

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

    return routes


def _of_rank(endpoint: str | None, rank: int) -> str:
    return of_rank(endpoint, rank) if endpoint else ""
