"""ZMQ addresses and settings of a publisher."""

from __future__ import annotations

from ipaddress import ip_address

from msgspec import Struct

from app.engine.kvcache.events import DEFAULT_LAYOUT, LayoutName
from config.declaration import PORTS, port_of


def of_rank(endpoint: str, rank: int) -> str:
    """Returns a rank's address: port + `rank`, or `_dp<rank>` after an inproc name. Raises ValueError."""
    port = port_of(endpoint)
    if port is not None:
        if port + rank >= PORTS:
            raise ValueError(f"no port is left for rank {rank}: {endpoint!r}")
        return f"{endpoint.rpartition(':')[0]}:{port and port + rank}"
    if rank and endpoint.startswith("ipc://"):
        raise ValueError(f"ranks cannot share one ipc address: {endpoint!r}")
    return f"{endpoint}_dp{rank}" if rank else endpoint


def is_bound(endpoint: str) -> bool:
    """Returns True if the publisher binds the address; False if it connects to a subscriber there."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def is_ipv6(endpoint: str) -> bool:
    return "[" in endpoint or "::" in endpoint


def is_name(endpoint: str) -> bool:
    """Returns whether the host of the address needs name resolution."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if not endpoint.startswith("tcp://") or host == "*":
        return False
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


class PublisherSettings(Struct, frozen=True, kw_only=True):
    """Publisher settings. `endpoint` is the PUB socket's, None for listeners only.

    `replay_endpoint` None means no replays. Both endpoints belong to rank 0. `flush_s` 0 publishes every step
    at once, as vLLM does. Up to `hwm` messages wait for a slow subscriber; vLLM's 100,000 could take
    gigabytes.
    """

    endpoint: str | None
    topic: str
    rank: int = 0
    replay_endpoint: str | None = None
    replay_batches: int = 1024
    layout: LayoutName = DEFAULT_LAYOUT
    batch_events: int = 16
    flush_s: float = 1.0
    queue_events: int = 100_000
    hwm: int = 1000
