"""Addresses of the ranks that publish KV events, and the settings of a publisher."""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Literal, TypeAlias

from msgspec import Struct

from config.declaration import PORTS, port_of

LayoutName: TypeAlias = Literal[
    "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
]
"""`map` is vLLM 0.24 and later; a number is the first vLLM version with a layout of arrays."""

QUEUE_BYTES = 256 << 20
"""Maximum bytes of events waiting to be published, as estimated by `event_bytes`."""
REPLAY_BYTES = 64 << 20
"""Maximum bytes of stored batches: ten thousand batches of long prompts could take gigabytes."""
DEFAULT_LAYOUT: LayoutName = "map"


class EventRules(Struct, frozen=True):
    """Rules of KV events that differ between versions of vLLM."""

    layout: LayoutName = DEFAULT_LAYOUT
    """Layout where the settings leave it to the version."""


def of_rank(endpoint: str, rank: int) -> str:
    """Returns the address of a rank: port + `rank`, or `_dp<rank>` after an inproc name.

    Raises:
        ValueError: The rank cannot have a separate address.
    """
    port = port_of(endpoint)
    if port is not None:
        if port + rank >= PORTS:
            raise ValueError(f"there is no port left for rank {rank}: {endpoint!r}")
        return f"{endpoint.rpartition(':')[0]}:{port and port + rank}"
    if rank and endpoint.startswith("ipc://"):
        raise ValueError(f"ranks cannot share one ipc address: {endpoint!r}")
    if rank:
        return f"{endpoint}_dp{rank}"
    return endpoint


def is_bound(endpoint: str) -> bool:
    """Returns whether the publisher binds the address; else it connects to a subscriber there."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def is_ipv6(endpoint: str) -> bool:
    """Returns whether the address is, or may be, an IPv6 address."""
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
    """Settings of a publisher.

    `endpoint` is that of the PUB socket; None means listeners only. Without `replay_endpoint` there
    are no replays. Both endpoints belong to rank 0. `flush_s` 0 publishes
    every step at once, as vLLM does. Up to `hwm` messages wait for a slow subscriber; vLLM's
    100,000 could take gigabytes.
    """

    endpoint: str | None
    topic: str
    rank: int = 0
    replay_endpoint: str | None = None
    replay_batches: int = 1024
    layout: LayoutName = DEFAULT_LAYOUT
    encode: Callable[..., bytes] | None = None
    """Encoder of batches instead of the layout's."""
    batch_events: int = 16
    flush_s: float = 1.0
    queue_events: int = 100_000
    hwm: int = 1000
    queue_bytes: int = QUEUE_BYTES
    replay_bytes: int = REPLAY_BYTES
