"""Free TCP ports of the loopback address that stay free until the server that is meant uses them."""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"


class Ports:
    """Ports that nobody listened on when they were taken; `close` gives all of them back.

    On Linux each stays reserved: a socket is bound to it that never listens. The kernel then does not give
    the port to anybody who asks for any, but to a server that asks for this one and sets SO_REUSEADDR, as
    gunicorn and ZMQ do. Elsewhere another process may be faster.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self) -> int:
        """A port that this object has not given before."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        port = int(reserved.getsockname()[1])
        if sys.platform == "linux":
            self._reserved.append(reserved)
        else:
            reserved.close()
        return port

    def close(self) -> None:
        """Give the ports back."""
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()
