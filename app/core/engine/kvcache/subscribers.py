"""Notices that KV events have no receiver."""

import math

import zmq

LIMIT_S = 60.0
"""Time after the first batch within which a subscriber should connect, in seconds."""
ADDRESS = "inproc://subscribers"


class SubscriberWatch:
    """Watches the connections of an XPUB socket until `LIMIT_S` after the first batch."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._limit_s = math.inf
        self._connections = context.socket(zmq.PAIR)
        # ZMQ's thread would wait for room among the reports, so their number has no limit.
        self._connections.rcvhwm = 0
        socket.monitor(ADDRESS, zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._connections.connect(ADDRESS)

    def misses_subscribers(self, now_s: float) -> bool:
        """Call this for each batch. Returns True once, if no client has connected in time."""
        if self._connections.closed:
            return False
        self._limit_s = min(self._limit_s, now_s + LIMIT_S)
        if self._connections.poll(0):
            self.close()
            return False
        if now_s >= self._limit_s:
            self.close()
        return self._connections.closed

    def close(self) -> None:
        """Ends the watch; may be called again."""
        if not self._connections.closed:
            self._socket.disable_monitor()
            self._connections.close(linger=0)
