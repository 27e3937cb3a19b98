"""A pause in long work, so that other greenlets have their turn."""

from __future__ import annotations

import gevent

PAUSE_S = 1e-6
"""Not 0: after a sleep of 0 the loop may run fifty more callbacks before it looks at sockets and timers."""


def pause() -> None:
    """Let whatever is due have its turn."""
    gevent.sleep(PAUSE_S)
