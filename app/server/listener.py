"""gevent's server without a greenlet per connection: whoever gets a connection decides what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent.server import StreamServer

LOOK_AGAIN_S = 0.05
"""How long nothing is accepted while as many connections are open as may be."""


class ClientServer(StreamServer):  # type: ignore[misc]
    """Hands each new connection to `accept` in the hub. While `is_full`, clients wait in the backlog."""

    def __init__(
        self, listener: Any, accept: Callable[[Any, Any], None], is_full: Callable[[], bool]
    ) -> None:
        super().__init__(listener, handle=accept, spawn=None)
        self._is_full = is_full

    def full(self) -> bool:
        is_full = self._is_full()
        if is_full and self.started:
            timer = self.loop.timer(LOOK_AGAIN_S)
            timer.start(self._accept_again, timer)
        return is_full

    def _accept_again(self, timer: Any) -> None:
        timer.close()
        if self.started:
            self.start_accepting()

    def do_handle(self, *args: Any) -> None:
        """`accept` sees to it that the connection is closed."""
        self.handle(*args)
