"""The saturating load: each connection sends its next request as soon as its answer is complete."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.client import ClientHealth, watched
from benchmarks.connections import RECEIVE, opened
from benchmarks.replies import EventStream, WholeReply

DRAIN_S = 5.0
"""Answers that are still to come at the end are waited for this long, and not counted."""


@dataclass(frozen=True, slots=True)
class LoopRun:
    """What came back within `wall_s` seconds; `units` are events of streams, or whole replies."""

    wall_s: float
    units: int
    latencies_ms: list[float]
    client: ClientHealth


class _Connection:
    __slots__ = ("receive", "reply", "sent_at", "sock")

    def __init__(self, sock: socket.socket, reply: EventStream | WholeReply) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.receive = sock.recv
        self.reply = reply
        self.sent_at = 0.0

    def ask(self, request: bytes) -> None:
        self.reply.restart()
        self.sent_at = time.monotonic()
        self.sock.send(request)


def run(
    port: int, count: int, duration_s: float, requests: Iterator[bytes], streams: bool
) -> LoopRun:
    """Keep `count` connections busy with `requests`, which do not end.

    RefusedError: an answer is not 200; ConnectionError: one breaks.
    """
    with opened(port, count) as sockets:
        connections = [
            _Connection(sock, EventStream() if streams else WholeReply()) for sock in sockets
        ]
        with watched() as watch:
            loop = _Loop(connections, requests)
            begun = time.monotonic()
            loop.until(begun + duration_s)
            wall_s = time.monotonic() - begun
            units = loop.units
            latencies_ms = loop.latencies_ms[:]
        watch.health = ClientHealth(watch.health.cpu, watch.health.waited, 0.0)
        loop.drain(time.monotonic() + DRAIN_S)
    return LoopRun(wall_s, units, latencies_ms, watch.health)


class _Loop:
    def __init__(self, connections: Sequence[_Connection], requests: Iterator[bytes]) -> None:
        self.units = 0
        self.latencies_ms: list[float] = []
        self._requests = requests
        self._busy = {connection.sock.fileno(): connection for connection in connections}
        self._epoll = select.epoll()
        for fd, connection in self._busy.items():
            self._epoll.register(fd, select.EPOLLIN)
            connection.ask(next(requests))

    def until(self, end: float) -> None:
        """Go on until the monotonic moment `end`."""
        while (now := time.monotonic()) < end:
            for fd, _ in self._epoll.poll(end - now):
                connection = self._busy[fd]
                if self._receive(connection):
                    connection.ask(next(self._requests))

    def drain(self, end: float) -> None:
        """Take the answers that are under way, so that the server is idle again."""
        with self._epoll:
            while self._busy and (now := time.monotonic()) < end:
                for fd, _ in self._epoll.poll(end - now):
                    if self._receive(self._busy[fd]):
                        del self._busy[fd]

    def _receive(self, connection: _Connection) -> bool:
        """True when the answer is complete."""
        received = connection.receive(RECEIVE)
        if not received:
            raise ConnectionResetError("the server closed a connection")
        self.units += connection.reply.feed(received)
        if connection.reply.done:
            self.latencies_ms.append((time.monotonic() - connection.sent_at) * 1e3)
        return connection.reply.done
