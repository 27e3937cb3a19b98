"""Who runs where:

the server on one core, the client on another, so that neither takes the other's time.
"""

from __future__ import annotations

import os

ALLOWED = sorted(os.sched_getaffinity(0))
SERVER = ALLOWED[0]
CLIENT = ALLOWED[-1]


def shared() -> bool:
    """True when client and server have to take turns; figures are then not worth much."""
    return len(ALLOWED) < 2


def pin_server(pid: int) -> None:
    """The server's core is the first one; processes that it starts later stay there too."""
    os.sched_setaffinity(pid, {SERVER})


def pin_client(pid: int = 0) -> None:
    """The client's core is the last one. 0 is this process."""
    os.sched_setaffinity(pid, {CLIENT})
