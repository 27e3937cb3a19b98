"""The paced load: many streams at once in one process, every chunk time-stamped as it arrives."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat

from benchmarks import stamps
from benchmarks.arrivals import Arrivals, Pace, Rhythm, pace
from benchmarks.client import ClientHealth, watched
from benchmarks.connections import RECEIVE, chat, opened
from benchmarks.replies import EventStream

PATIENCE = 4.0
"""A run is given up after this many times its own length, and at least `PATIENCE_S`."""
PATIENCE_S = 10.0
LAG_LIMIT_MS = 1.0
"""Own lateness (p99) that is worth a warning when nobody but the client tells the time."""
SETTLE_S = 0.2
"""The server accepts all connections before the first request."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """`streams` requests for `tokens` tokens each, their starts evenly spread over `spread_s`."""

    port: int
    streams: int
    tokens: int
    spread_s: float
    length_s: float
    """How long one stream should take."""
    requests: Iterator[bytes] | None = None
    """Requests of the streams, without an end; None stands for short chats."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    """What came back; `unfinished` streams broke off or were given up.

    `stamped`: the kernel said when chunks arrived, otherwise the client looked at the clock.
    """

    arrivals: list[Arrivals]
    unfinished: int
    stamped: bool
    client: ClientHealth


@dataclass(frozen=True, slots=True)
class Observation:
    """A run in figures, and who took them."""

    pace: Pace
    unfinished: int
    stamped: bool
    client: ClientHealth

    def warnings(self, server: str, rhythm: Rhythm) -> list[str]:
        """What is not the server's doing, and what is not in the figures; empty when all was well."""
        # Stamped chunks keep their moments, until two that are far apart are read together.
        limit_ms = rhythm.itl_s * 1e3 / 2 if self.stamped else LAG_LIMIT_MS
        missing = (
            [f"{self.unfinished} streams of {server} did not finish"] if self.unfinished else []
        )
        return missing + self.client.warnings(limit_ms)


def observe(plan: StreamPlan, rhythm: Rhythm) -> Observation:
    """`play`, in figures."""
    run = play(plan)
    return Observation(pace(run.arrivals, rhythm), run.unfinished, run.stamped, run.client)


def play(plan: StreamPlan) -> StreamRun:
    """Run a plan to its end. RefusedError when an answer is not 200."""
    with opened(plan.port, plan.streams) as sockets:
        time.sleep(SETTLE_S)
        with watched() as watch:
            load = _Load(plan, sockets, watch.lags_ns)
            load.run()
    arrivals = [Arrivals(stream.requested_ns, stream.chunks_ns) for stream in load.streams]
    return StreamRun(arrivals, load.unfinished, load.stamped, watch.health)


class _Stream:
    __slots__ = ("chunks_ns", "receive", "reply", "requested_ns", "sock")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        stamps.ask_for(sock)
        self.sock = sock
        self.receive = sock.recvmsg
        self.reply = EventStream()
        self.requested_ns = 0
        self.chunks_ns: list[int] = []


class _Load:
    def __init__(
        self, plan: StreamPlan, sockets: Sequence[socket.socket], lags_ns: list[int]
    ) -> None:
        self.stamped = True
        self.streams = [_Stream(sock) for sock in sockets]
        self.unfinished = len(self.streams)
        self._lags_ns = lags_ns
        self._requests = plan.requests or repeat(chat(plan.tokens, stream=True))
        self._by_fd = {stream.sock.fileno(): stream for stream in self.streams}
        self._epoll = select.epoll()
        for fd in self._by_fd:
            self._epoll.register(fd, select.EPOLLIN)
        now = time.monotonic()
        step_s = plan.spread_s / max(1, plan.streams)
        self._starts = [now + index * step_s for index in range(plan.streams)]
        self._started = 0
        self._give_up = now + max(PATIENCE_S, PATIENCE * (plan.spread_s + plan.length_s))

    def run(self) -> None:
        with self._epoll:
            while self._by_fd and (now := time.monotonic()) < self._give_up:
                wait_s = min(self._start_due(now), self._give_up) - now
                ready = self._epoll.poll(max(0.0, wait_s))
                self._receive(ready, time.time_ns())

    def _start_due(self, now: float) -> float:
        """Send the requests whose moment has come; the moment of the next one, infinity after the
        last.
        """
        while self._started < len(self._starts):
            if (start := self._starts[self._started]) > now:
                return start
            stream = self.streams[self._started]
            request = next(self._requests)
            stream.requested_ns = time.time_ns()
            with suppress(ConnectionError):
                stream.sock.send(request)
            self._started += 1
        return float("inf")

    def _receive(self, ready: Sequence[tuple[int, int]], woke_ns: int) -> None:
        for fd, _ in ready:
            stream = self._by_fd[fd]
            try:
                received, ancillary, _, _ = stream.receive(RECEIVE, stamps.ROOM)
            except ConnectionError:
                received = b""
            now = time.time_ns()
            if not received:
                self._end(fd)
                continue
            arrived = stamps.stamp_ns(ancillary)
            self.stamped &= arrived > 0
            self._lags_ns.append(now - (arrived or woke_ns))
            stream.chunks_ns.extend([arrived or now] * stream.reply.feed(received))
            if stream.reply.done:
                self.unfinished -= 1
                self._end(fd)

    def _end(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._by_fd[fd]
