"""GET /kv_event_sources: where each rank publishes its KV events."""

from __future__ import annotations

from typing import Any

from flask import Blueprint

from app.api.replies import Reply, json_reply

NOWHERE: dict[str, Any] = {
    "enable_kv_cache_events": False,
    "publisher": "null",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "",
    "buffer_steps": 10_000,
    "hwm": 100_000,
    "max_queue_size": 100_000,
    "topic": "",
}
"""What a rank without KV events tells."""


def blueprint(ranks: int) -> Blueprint:
    routes = Blueprint("kv_events", __name__)

    @routes.get("/kv_event_sources")
    def kv_event_sources() -> Reply:
        """The publisher of every rank, by its number."""
        return json_reply({str(rank): NOWHERE for rank in range(ranks)})

    return routes
