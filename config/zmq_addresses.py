"""ZMQ addresses in vLLM's syntax."""

from __future__ import annotations

from config.declaration import understood_by

SCHEMES = ("tcp", "ipc", "inproc")
PORTS = 1 << 16


def port_of(endpoint: str) -> int | None:
    """Returns the port of a tcp address; None for ipc and inproc. ValueError for an invalid address."""
    scheme, _, address = endpoint.partition("://")
    if scheme not in SCHEMES or not address:
        raise ValueError(f"not a ZMQ address of tcp, ipc or inproc: {endpoint!r}")
    if scheme != "tcp":
        return None
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < PORTS):
        raise ValueError(f"not a ZMQ address of tcp with a port: {endpoint!r}")
    return int(port)


ZMQ_ADDRESS = understood_by(
    lambda value: port_of(value) if value else None,
    "must be tcp://host:port, with a number as port, ipc:// or inproc://",
)
"""Rule of a setting for a ZMQ address; may be empty."""
