"""GET /kv/index: what the index holds, how far behind it is, and what it could not use."""

from __future__ import annotations

from flask import Blueprint

from app.http.response import Reply, json_reply
from app.kvindex.service import KvIndex, Stats


def blueprint(index: KvIndex, backend: str) -> Blueprint:
    routes = Blueprint("kv_index", __name__)

    @routes.get("/kv/index")
    def kv_index() -> Reply:
        """The state of the index; sizes and pods are null while its backend does not answer."""
        head = {"backend": backend, "block_size": index.block_size, "listens_at": index.address}
        return json_reply(head | _body(index.stats()))

    return routes


def _body(stats: Stats) -> dict[str, object]:
    return {
        "size": stats.size,
        "pods": stats.pods,
        "streams": stats.streams,
        "sources": stats.targets,
        "queued": stats.queued,
        "skipped": {"messages": stats.skipped_messages, "events": stats.skipped_events},
    }
