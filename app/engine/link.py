"""A worker's connection to an engine in a process of its own: orders go, notices come, and it may break."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import gevent
import msgspec
import zmq.green as zmq
from gevent import Greenlet
from zmq.utils.monitor import recv_monitor_message

from app.engine.wire import Hello, Notice, Order

log = logging.getLogger(__name__)

CONNECTED, LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
RECONNECT_MS = 50
"""How often it is looked for an engine that is not there."""
GREETING_MS = 500
"""How often an engine is greeted that has not answered: it may load its model yet."""


class EngineLink:
    """Begin it in the process that uses it. All calls are made in that process's hub, or in greenlets.

    `on_notices` takes what a step has brought, `on_lost` is called when the engine's process has ended. A new
    one at the same address is found by itself, and is greeted.
    """

    def __init__(
        self, endpoint: str, on_notices: Callable[[Sequence[Notice]], None], on_lost: Callable[[], None]
    ) -> None:
        self.wants_kv_events = False
        """Said in the greeting."""
        self.is_greeted = False
        """The engine has answered since the connection came about; who hears it says so."""
        self._endpoint = endpoint
        self._on_notices, self._on_lost = on_notices, on_lost
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Notice]).decode
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._greenlets: list[Greenlet[[], None]] = []

    def start(self) -> None:
        """Connect, and greet the engine as soon as it is there."""
        self._context = context = zmq.Context()
        self._socket = socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is kept for an engine that is not there
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        monitor = socket.get_monitor_socket(CONNECTED | LOST)
        self._greenlets = [gevent.spawn(self._watch, socket, monitor), gevent.spawn(self._read, socket)]
        socket.connect(self._endpoint)

    def close(self) -> None:
        """Say nothing more. The engine notices."""
        gevent.killall(self._greenlets)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        if self._context is not None:
            self._context.destroy()
        self._socket = self._context = None

    def send(self, orders: Sequence[Order]) -> bool:
        """Never waits. False when nobody is there who could take them."""
        if self._socket is None:
            return False
        try:
            self._socket.send(self._encode(orders), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _read(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                notices = self._decode(socket.recv())
            except msgspec.DecodeError:
                log.exception("the engine says what is not understood")
                continue
            self._on_notices(notices)

    def _watch(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        hello = [Hello(self.wants_kv_events)]
        while True:
            if not monitor.poll(GREETING_MS):
                if not self.is_greeted:
                    self.send(hello)
                continue
            event = recv_monitor_message(monitor)["event"]
            if event == LOST:
                self.is_greeted = False
                self._on_lost()
            elif event == CONNECTED:
                self.send(hello)
