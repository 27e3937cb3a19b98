"""A gate in front of a pod: the router connects to the gate.

The gate passes bytes on. It closes its port while the pod is down, holds all bytes during a
partition, and holds the answers of generating requests while the engine is stuck. It also notes
which requests have reached the pod.
"""

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress

import gevent
import gevent.socket
from gevent.event import Event
from gevent.server import StreamServer
from msgspec import Struct

from workbench.fleet.processes import HOST, FleetError

ID_PREFIX = "drill-"
REQUEST_ID = re.compile(rb"drill-\d{6}", re.ASCII)
ID_BYTES = len(ID_PREFIX) + 6
PIECE_BYTES = 65_536
CONNECT_TIMEOUT_S = 5.0
BACKLOG = 256
GENERATES = re.compile(rb"POST /v1/", re.ASCII)
PROBES = re.compile(rb"GET /health[ ?]", re.ASCII)
LINGER_RESET = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""SO_LINGER of 0 seconds: closing the socket sends RST."""


class Attempt(Struct, frozen=True):
    """A request that has reached a pod."""

    request_id: str
    pod: int
    time_s: float


class _Connection:
    """A connection of the router, and the one to the pod behind it."""

    def __init__(self, client: socket.socket, pod: socket.socket) -> None:
        self.client = client
        self.pod = pod
        self.is_generating = False
        """True if the current request generates."""
        self._has_answer = True
        """True if bytes of an answer came after the latest byte of a request."""
        self._tail = b""
        self._is_noted = False

    def on_request(self, piece: bytes) -> str | None:
        """Reads a part of a request; returns its id when the part completes the id."""
        if self._has_answer:
            self._has_answer = False
            self._is_noted = False
            self._tail = b""
            self.is_generating = GENERATES.match(piece) is not None
        if self._is_noted:
            return None
        text = self._tail + piece
        self._tail = text[-ID_BYTES:]
        match = REQUEST_ID.search(text)
        if match is None:
            return None
        self._is_noted = True
        return match[0].decode()

    def on_answer(self) -> None:
        """Notes that the current request is being answered."""
        self._has_answer = True

    def reset(self) -> None:
        """Breaks both connections."""
        for end in (self.client, self.pod):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Gate:
    """The port of a pod, as its router sees the pod. `open` and `close` may alternate."""

    def __init__(
        self,
        number: int,
        port: int,
        pod_port: int,
        *,
        now: Callable[[], float],
        note: Callable[[Attempt], None],
    ) -> None:
        """`note` receives each request that reaches the pod; `now` is the time in seconds."""
        self.number = number
        self.port = port
        self._pod_address = (HOST, pod_port)
        self._now = now
        self._note = note
        self._server: StreamServer | None = None
        self._connections: set[_Connection] = set()
        self._has_network = Event()
        self._has_network.set()
        self._has_progress = Event()
        self._has_progress.set()
        self.probed = Event()
        """Set by each probe of /health, and never cleared by the gate."""

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    def open(self) -> None:
        """Listens, if the gate is closed.

        Raises:
            FleetError: The port is in use, or must not be used.
        """
        if self._server is not None:
            return
        listener = gevent.socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, self.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            reason = os.strerror(error.errno or 0)
            raise FleetError(f"port {self.port} of pod {self.number}: {reason}") from None
        self._server = StreamServer(listener, self._serve)
        self._server.start()

    def close(self) -> None:
        """Refuses connections, and breaks open ones."""
        server = self._server
        self._server = None
        if server is not None:
            server.close()
        for connection in list(self._connections):
            connection.reset()

    def cut(self) -> None:
        """Holds all bytes in both directions."""
        self._has_network.clear()

    def heal(self) -> None:
        """Passes bytes again, those held first."""
        self._has_network.set()

    def hold_answers(self) -> None:
        """Holds the answers of generating requests."""
        self._has_progress.clear()

    def pass_answers(self) -> None:
        """Passes the answers on, those held first."""
        self._has_progress.set()

    def _serve(self, client: socket.socket, address: object) -> None:
        self._has_network.wait()
        try:
            pod = gevent.socket.create_connection(self._pod_address, CONNECT_TIMEOUT_S)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            client.close()
            return
        pod.settimeout(None)
        for end in (client, pod):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, pod)
        self._connections.add(connection)
        requests = gevent.spawn(self._pass_requests, connection)
        answers = gevent.spawn(self._pass_answers, connection)
        try:
            gevent.wait([requests, answers], count=1)
        finally:
            gevent.killall([requests, answers])
            self._connections.discard(connection)
            pod.close()
            client.close()

    def _pass_requests(self, connection: _Connection) -> None:
        """Passes bytes to the pod until one side ends."""
        with suppress(OSError):
            while True:
                piece = connection.client.recv(PIECE_BYTES)
                if not piece:
                    return
                self._has_network.wait()
                if PROBES.match(piece):
                    self.probed.set()
                request_id = connection.on_request(piece)
                if request_id is not None:
                    self._note(Attempt(request_id, self.number, self._now()))
                connection.pod.sendall(piece)

    def _pass_answers(self, connection: _Connection) -> None:
        """Passes bytes of the pod until one side ends."""
        with suppress(OSError):
            while True:
                piece = connection.pod.recv(PIECE_BYTES)
                if not piece:
                    return
                if connection.is_generating:
                    self._has_progress.wait()
                self._has_network.wait()
                connection.on_answer()
                connection.client.sendall(piece)
