"""Writes of many streams, gathered while a turn of the pacer renders them, then sent one after another.

Sending is the kernel's work and rendering is ours. Done in turns, each pushes the other's code and data out
of the processor's caches, and a client that empties its sockets quickly falls asleep between two chunks, so
that every send has to wake it. In two passes a chunk costs a seventh less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent


class WriteBatcher:
    """Calls each `send` handed to it, in order, soon after the turn in which it was handed over.

    It belongs to the hub of the thread that first uses it.
    """

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._run_soon: Any = None

    def put(self, send: Callable[[], None]) -> None:
        """Have `send()` called before the hub looks at sockets and timers again."""
        if not self._waiting:
            if self._run_soon is None:
                self._run_soon = gevent.get_hub().loop.run_callback
            self._run_soon(self._flush)
        self._waiting.append(send)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()
