"""Writes of many streams or answers, gathered while they are rendered, then sent one after another.

Sending is the kernel's work and rendering is ours. Done in turns, each pushes the other's code and data out
of the processor's caches, and a client that empties its sockets quickly falls asleep between two chunks, so
that every send has to wake it. In two passes a chunk costs a seventh less, a short answer a fifth to a
quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent


class WriteBatcher:
    """Calls each `send` handed to it, in order, soon after the turn in which it was handed over.

    It does so at once when `most` are waiting: the first has then waited long enough. It belongs to the hub
    of the thread that first uses it.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._waiting: list[Callable[[], None]] = []
        self._run_soon: Any = None

    def put(self, send: Callable[[], None]) -> None:
        """Have `send()` called before the hub looks at sockets and timers again."""
        if not self._waiting:
            if self._run_soon is None:
                self._run_soon = gevent.get_hub().loop.run_callback
            self._run_soon(self._flush)
        self._waiting.append(send)
        if len(self._waiting) == self._most:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            send()
