"""GET /kv/index: what the index holds, how far behind it is, and what it could not use."""

from __future__ import annotations

from typing import Any

import msgspec

from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get
from app.kvindex.service import KvIndex, Stats


def routes(index: KvIndex, backend: str) -> list[Route]:

    def kv_index(context: RequestContext) -> Response:
        """The state of the index; sizes and pods are null while its backend does not answer."""
        head = {"backend": backend, "block_size": index.block_size, "listens_at": index.address}
        return json_response(head | _told(index.stats()))

    return [
        get("/kv/index", kv_index),
    ]


def _told(stats: Stats) -> dict[str, Any]:
    return {
        "size": msgspec.to_builtins(stats.size),
        "pods": stats.pods,
        "streams": [
            {
                "pod": stream.pod,
                "model": stream.model,
                "rank": stream.rank,
                "last_sequence": stream.sequence,
                "lag_seconds": stream.lag_s,
            }
            for stream in stats.streams
        ],
        "sources": stats.targets,
        "queued": stats.queued,
        "skipped": {"messages": stats.skipped_messages, "events": stats.skipped_events},
    }
