"""Ends the connections of a worker that stops, without losing a request: `ConnectionDrain`.

A client may send its next request on a kept connection at the moment when the server closes it.
The client then gets no answer, and cannot know whether the request was served. No server can rule
this out, since the close and the request cross on the network. A server can make it unlikely:

* It answers one more request on each kept connection, with `Connection: close`, so that the client
  sends no further request there.
* It closes an idle connection only when some time has passed since its last answer. A client that
  sends again within this time never loses a request. For a slower client the chance is the time
  that a close takes to reach the client, divided by the client's pause: one in 100,000 for 0.1 ms
  and 10 s.
* It accepts the connections that the kernel has established before it closes the last copy of the
  listening socket, which would reset them.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from contextlib import suppress

import gevent

from app.core.server.gunicorn.hub_connection import HubConnection, OpenConnections

HANDOVER_S = 5.0
"""Seconds after its last answer for which an idle connection stays open when a successor serves.

Long, because the end of the old worker is not urgent. Not longer, because a client that pauses
should soon see the configuration of the new worker.
"""
FIRST_REQUEST_S = 1.0
"""Shortest time for the first request of a connection, and for the end of a head, in seconds.

Long enough for a proxy on a busy machine to write after it has connected.
"""
CONNECTIONS_PER_PAUSE = 256
"""Connections that are checked before other greenlets run: 256 take half a millisecond."""
SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
"""Linux' socket options, which Python's socket module does not name (asm-generic/socket.h)."""
TCP_FLAGS_OFFSET = 13
SYN = 0x02
SYN_OR_ACK = 0x12
NO_NEW_HANDSHAKES = (
    (0x30, 0, 0, TCP_FLAGS_OFFSET),  # load the byte with the flags
    (0x54, 0, 0, SYN_OR_ACK),  # keep two flags
    (0x15, 0, 1, SYN),  # SYN alone: next instruction, else the one after
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # accept it
)
"""Classic BPF program: code, jump if true, jump if false, operand."""


class ConnectionDrain:
    """The open connections of a stopping worker.

    `idle_s`: seconds after its last answer for which an idle connection stays open. HTTP/2
    connections accept calls for this time after the start of the drain.
    """

    def __init__(self, connections: OpenConnections, idle_s: float) -> None:
        self.idle_s = idle_s
        self._connections = connections
        self._start_s = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """True while a request is being answered."""
        return any(connection.busy for connection in self._connections)

    def sweep(self) -> bool:
        """Closes connections whose time is over; returns True while any is open. May pause."""
        now_s = time.monotonic()
        for number, connection in enumerate(list(self._connections), start=1):
            if number % CONNECTIONS_PER_PAUSE == 0:
                gevent.sleep(0)
            if connection not in self._connections:
                continue
            if now_s < self._start_s + self.idle_s:
                connection.announce_end()
            else:
                connection.refuse_requests()
            connection.enforce_limits(now_s)
            if connection.busy or connection not in self._connections:
                continue
            # A request may have arrived unread because the loop is late: it is answered.
            if self._is_due(connection, now_s) and not connection.has_unread:
                connection.close()
        return bool(self._connections)

    def _is_due(self, connection: HubConnection, now_s: float) -> bool:
        """Returns whether an idle connection has been open for long enough."""
        idle_s = self.idle_s
        since_s = connection.since_s
        if connection.is_receiving:
            since_s = max(since_s, self._start_s)
        if connection.is_receiving or connection.is_new:
            idle_s = max(idle_s, FIRST_REQUEST_S)
        return now_s - since_s >= idle_s


def refuse_handshakes(listener: socket.socket) -> None:
    """Lets the kernel drop requests for new TCP connections, while those under way are completed.

    A connection that is established between the last accept and the close would be reset, after
    its client has sent a request. A client whose handshake is dropped tries again after a second,
    and is refused: it has sent nothing, and every proxy tries its next server. Systems other than
    Linux ignore this.

    The filter belongs to the listener in all processes that share it: use it only where no other
    process continues to accept, and call `admit_handshakes` before the listener is closed.
    """
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return  # gunicorn removes the name of a Unix socket before its workers stop
    instructions = b"".join(struct.pack("HBBI", *step) for step in NO_NEW_HANDSHAKES)
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("HP", len(NO_NEW_HANDSHAKES), ctypes.addressof(code))
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def admit_handshakes(listener: socket.socket) -> None:
    """Removes the filter of `refuse_handshakes`, in case another process has the listener, too."""
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
