"""Routes for routers: the endpoints of KV events, and the ids of the engines."""

import socket
from uuid import NAMESPACE_URL, uuid5

from app.core.engine.kvcache.publishing import PublisherSettings, of_rank
from app.core.server.http.context import RequestContext
from app.core.server.http.route import Route, action
from config.settings import ServerSettings


def source_routes(
    kv_events: PublisherSettings, *, publishes: bool, server: ServerSettings, first_port: int
) -> list[Route]:
    """Returns the routes. Endpoints and `first_port` belong to rank 0; other ranks follow."""
    host = server.pod_ip or socket.gethostname()
    base_url = f"http://{host}:{first_port}"

    def source(rank: int) -> dict[str, object]:
        endpoint = kv_events.endpoint
        replay_endpoint = kv_events.replay_endpoint
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": of_rank(endpoint, rank) if endpoint else "",
            "replay_endpoint": of_rank(replay_endpoint, rank) if replay_endpoint else "",
            "buffer_steps": kv_events.replay_batches,
            "hwm": kv_events.hwm,
            "max_queue_size": kv_events.queue_events,
            "topic": kv_events.topic,
        }

    def sources(context: RequestContext) -> object:
        """The publisher of every rank, by its number; empty if no events are published."""
        if not publishes:
            return {}
        return {str(rank): source(rank) for rank in server.engine_ranks}

    def engines(context: RequestContext) -> object:
        """The engine of every rank, by its number, as of Mooncake's bootstrap server."""
        ids = {}
        for rank in range(server.data_parallel_size):
            engine_id = uuid5(NAMESPACE_URL, f"{base_url}/{rank}")
            ids[str(rank)] = {"engine_id": str(engine_id)}
        return ids

    return [
        action("GET /kv_event_sources", sources),
        action("GET /query", engines),
    ]
