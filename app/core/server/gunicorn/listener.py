"""The listening socket of a worker: accepts connections as long as there is room for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent.socket

from app.core.server.http.accepting import PatientServer

MAX_LEFT = 16
"""Most connections that are dropped for each one that is handed on: less than half a millisecond.

Clients that opened and closed thousands of connections would otherwise fill the backlog, and it
would refuse those of others for seconds.
"""


class ClientServer(PatientServer):
    """Hands each new connection to `accept` in the hub, but for most whose client `has_left`.

    While `is_full`, clients wait in the backlog. Clients whose requests wait for a turn do not
    hold back others: a health check behind them in the backlog would wait, too.
    """

    max_accept = 16
    """Most connections that a turn of the event loop accepts; further clients wait in the backlog.

    Accepting and answering 16 takes 2 ms, less than the work of a turn (`fair_turns.TURN_S`). With
    gevent's 100, clients that connect without a pause were accepted faster than they were answered,
    and each request on a kept connection waited for thousands of new ones.
    """

    def __init__(
        self,
        listener: gevent.socket.socket,
        accept: Callable[[gevent.socket.socket, object], None],
        has_left: Callable[[Any], bool],
        is_full: Callable[[], bool],
    ) -> None:
        super().__init__(listener, handle=accept, spawn=None)
        self._has_left = has_left
        self._is_full = is_full

    def do_read(self) -> Any:
        """Returns the next connection; None without one.

        Raises:
            GreenletExit: no room for connections; gevent tries again after a delay.
        """
        if self._is_full():
            raise gevent.GreenletExit
        accepted = super().do_read()
        for _ in range(MAX_LEFT):
            if accepted is None or not self._has_left(accepted[0]):
                break
            accepted[0].close()
            accepted = super().do_read()
        return accepted

    def do_handle(self, *args: Any) -> None:
        """Leaves closing the connection to `accept`."""
        self.handle(*args)

    def refuse_handshakes(self) -> None:
        """Begins no more connections; `accept_waiting` serves those that have begun."""
        from app.core.server.gunicorn.drain import refuse_handshakes  # needed once

        self.stop_accepting()
        refuse_handshakes(self.socket)

    def close(self) -> None:
        """Closes this process' copy of the listener. May be called twice."""
        if not self.closed:
            from app.core.server.gunicorn.drain import admit_handshakes  # needed once

            admit_handshakes(self.socket)
        super().close()

    def accept_waiting(self) -> None:
        """Accepts the connections in the backlog, as many as there is room for."""
        with suppress(gevent.GreenletExit):
            accepted = self.do_read()
            while accepted is not None:
                self.do_handle(*accepted)
                accepted = self.do_read()
