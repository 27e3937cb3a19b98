"""Free ports of this machine, for servers of tests."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress

PORTS = range(16_000, 32_000)
"""Ports below the kernel's ephemeral range, so that outgoing connections take none of these."""
MAX_RANKS = 64
"""Least number of ports that each worker of pytest-xdist has to itself."""
HOST = "127.0.0.1"


def free_port(ports: int = 1) -> int:
    """Returns the first of `ports` neighboring TCP ports that are free now."""
    own_ports = _ports_of_worker(os.environ)
    while True:
        first = secrets.choice(own_ports)
        with ExitStack() as probes, suppress(OSError):
            for port in range(first, first + ports):
                probes.enter_context(socket.socket()).bind((HOST, port))
            return first


def _ports_of_worker(environ: Mapping[str, str]) -> range:
    """Returns the ports of this process: each worker of pytest-xdist has a share of `PORTS`."""
    worker = environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    count = environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not worker.isdecimal() or not count.isdecimal():
        return PORTS
    share = len(PORTS) // max(1, int(count))
    if share <= MAX_RANKS:
        return PORTS
    first = int(worker) % int(count) * share
    return PORTS[first : first + share]
