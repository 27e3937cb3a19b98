"""ZMQ addresses, read as vLLM reads them, and sockets at them."""

from __future__ import annotations

from typing import Any

import zmq

SCHEMES = ("tcp", "ipc", "inproc")
PORTS = 1 << 16


def of_rank(endpoint: str, rank: int) -> str:
    """The address of a data parallel rank: the port is `rank` higher, an inproc name ends in `_dp<rank>`.

    Port 0, any free one, stays. ValueError for another scheme, for what is no port, and for ipc with a rank.
    """
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if scheme not in SCHEMES or not address:
        raise ValueError(f"not a ZMQ endpoint of tcp, ipc or inproc: {endpoint}")
    if scheme == "tcp":
        if not host or not (port.isascii() and port.isdigit()) or int(port) + rank >= PORTS:
            raise ValueError(f"not a ZMQ endpoint of tcp with a port for rank {rank}: {endpoint}")
        return f"tcp://{host}:{int(port) and int(port) + rank}"
    if rank and scheme == "ipc":
        raise ValueError(f"ranks cannot share one ipc endpoint: {endpoint}")
    return f"{endpoint}_dp{rank}" if rank else endpoint


def is_bound(endpoint: str) -> bool:
    """Whether a publisher binds the address, for subscribers to connect to, or connects to a subscriber."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, bind: bool, hwm: int
) -> tuple[zmq.Socket[bytes], str]:
    """A socket that keeps `hwm` messages for each peer, and its address with the port in use.

    ZMQError when the endpoint is taken or not of this machine.
    """
    socket = context.socket(kind)
    try:
        socket.sndhwm = hwm
        if "[" in endpoint or "::" in endpoint:
            socket.ipv6 = True
        if bind:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        address: Any = socket.last_endpoint
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket, address.decode().rstrip("\0")
