"""Free ports of this machine, for servers of tests."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack, suppress

PORTS = range(16_000, 32_000)
"""Ports below the kernel's ephemeral range, so that outgoing connections take none of these."""
HOST = "127.0.0.1"


def free_port(ports: int = 1) -> int:
    """Returns the first of `ports` neighboring TCP ports that are free now."""
    while True:
        first = secrets.choice(PORTS)
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + ports):
                probes.enter_context(socket.socket()).bind((HOST, port))
            return first
