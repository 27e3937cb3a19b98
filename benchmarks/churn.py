"""How long GET /health takes beside clients that connect, send a little, disconnect, and repeat.

Each client keeps 40 sockets busy until enough durations are known. It sends HTTP/2's preface and
SETTINGS ("h2"), or a request of HTTP/1.1 whose answer it does not read ("h1"). Another process asks
for /health by turns on a new and on a kept connection. Each row of each round has a fresh server,
and a bare gunicorn next to it in time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import HeadersFrame, RstStreamFrame

from benchmarks.arrivals import quantile
from benchmarks.connections import HOST, exchange, get
from benchmarks.http2_crowds import LINES, PREFACE, SETTINGS
from benchmarks.options import add_other, parser
from benchmarks.processes import rss_mib
from benchmarks.report import medians, number, show, show_machine
from benchmarks.servers import Load, Server, bare, ours_and_other

SOCKETS = 40
CHURN_S = 3.0
FLOOD_S = 3.0
FLOOD_STREAMS = 2000
MIN_SAMPLES = 300
MAX_PROBE_S = 15.0
"""Time after which a probe ends with fewer durations."""
PROBE_EVERY_S = 0.005
TIMEOUT_S = 5.0
"""Longest time for a request, which then counts as its duration."""
MAX_RSS_MIB = 150.0
HEALTH_LIMIT_MS = 100.0
MAX_RATIO = 1.5
"""The largest p99, relative to the bare server, where that does not keep HEALTH_LIMIT_MS."""
START = PREFACE + SETTINGS
SENT = {"h2": START, "h1": get("/health")}
COLUMNS = ("server", "memory max MiB", "p99 ms", "new p99 ms", "kept p99 ms", "connections/s", "")


@dataclass(frozen=True, slots=True)
class Churn:
    """What happens beside the requests for /health."""

    kind: str
    clients: int
    follows_flood: bool = False

    @property
    def name(self) -> str:
        name = f"{self.kind}, clients: {self.clients}"
        if self.follows_flood:
            name += ", after a rapid reset flood"
        return name


@dataclass(frozen=True, slots=True)
class ChurnFigures:
    """Memory, durations of GET /health in ms, and the connections of the churn per second."""

    rss_mib: float
    p99_ms: float
    new_p99_ms: float
    kept_p99_ms: float
    connections: float

    def row(self, name: str, reference: ChurnFigures) -> list[str]:
        """Compares with the `reference`, a bare server."""
        limit_ms = HEALTH_LIMIT_MS
        if reference.p99_ms > HEALTH_LIMIT_MS:
            limit_ms = MAX_RATIO * reference.p99_ms
        is_fine = self.rss_mib <= MAX_RSS_MIB and self.p99_ms <= limit_ms
        return [
            name,
            number(self.rss_mib, 0),
            number(self.p99_ms, 1),
            number(self.new_p99_ms, 1),
            number(self.kept_p99_ms, 1),
            number(self.connections, 0),
            ("TOO MUCH", "")[is_fine],
        ]


def churns() -> list[Churn]:
    """Returns the rows."""
    plain = [Churn(kind, clients) for kind in SENT for clients in (1, 3)]
    return [*plain, *(Churn("h2", clients, follows_flood=True) for clients in (1, 3))]


def connect(port: int) -> socket.socket:
    """Connects to the server."""
    return socket.create_connection((HOST, port), TIMEOUT_S)


def churn(port: int, data: bytes, is_over: Event, sender: Connection) -> None:
    """Connects, sends `data` and disconnects; sends the number of connections per second."""
    selector = selectors.DefaultSelector()
    count = 0

    def begin() -> None:
        with suppress(OSError):
            client = connect(port)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_WRITE)

    begin_s = time.monotonic()
    while not is_over.is_set():
        while len(selector.get_map()) < SOCKETS and not is_over.is_set():
            begin()
        for key, _ in selector.select(1):
            client: socket.socket = key.fileobj  # type: ignore[assignment]
            with suppress(OSError):
                client.send(data)
            selector.unregister(client)
            client.close()
            count += 1
            begin()
    sender.send(count / (time.monotonic() - begin_s))


def flood(port: int) -> None:
    """Opens and resets streams as fast as possible, on one connection after another."""
    lines = {**LINES, "content-type": "application/grpc"}
    block = Encoder().encode(list(lines.items()), huffman=False)
    frames = b"".join(
        HeadersFrame(stream_id, block, flags=("END_HEADERS",)).serialize()
        + RstStreamFrame(stream_id, ErrorCodes.CANCEL).serialize()
        for stream_id in range(1, 2 * FLOOD_STREAMS, 2)
    )
    end_s = time.monotonic() + FLOOD_S
    while time.monotonic() < end_s:
        with suppress(OSError), connect(port) as client:
            client.sendall(START + frames)


def probe(port: int, sender: Connection) -> None:
    """Sends the durations of GET /health in ms, on new and on kept connections."""
    new_ms: list[float] = []
    kept_ms: list[float] = []
    end_s = time.monotonic() + CHURN_S
    limit_s = time.monotonic() + MAX_PROBE_S
    kept_clients: list[socket.socket] = []
    with ExitStack() as connections:

        def ask(clients: list[socket.socket]) -> float:
            begin_s = time.monotonic()
            with suppress(OSError):
                if not clients:
                    clients.append(connections.enter_context(connect(port)))
                try:
                    exchange(clients[0], get("/health"))
                except OSError:
                    clients.pop().close()
            return (time.monotonic() - begin_s) * 1e3

        ask(kept_clients)
        while time.monotonic() < end_s or (
            len(new_ms) + len(kept_ms) < MIN_SAMPLES and time.monotonic() < limit_s
        ):
            client: list[socket.socket] = []
            new_ms.append(ask(client))
            for sock in client:
                sock.close()
            kept_ms.append(ask(kept_clients))
            time.sleep(PROBE_EVERY_S)
    sender.send((new_ms, kept_ms))


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Runs `target` with a pipe as its last argument; yields the other end."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=target, args=(*arguments, sender), daemon=True)
    child.start()
    sender.close()  # so that a child that fails ends the wait
    yield receiver
    child.join()


def measure(server: Server, crowd: Churn) -> ChurnFigures:
    """Runs the churn once, on a server that has done nothing yet."""
    if crowd.follows_flood:
        flood(server.port)
    max_rss_mib = rss_mib(server.worker)
    is_over = multiprocessing.Event()
    with ExitStack() as processes:
        counts = [
            processes.enter_context(process(churn, server.port, SENT[crowd.kind], is_over))
            for _ in range(crowd.clients)
        ]
        durations = processes.enter_context(process(probe, server.port))
        while not durations.poll(0.02):
            max_rss_mib = max(max_rss_mib, rss_mib(server.worker))
        new_ms, kept_ms = durations.recv()
        is_over.set()
        connections = sum(count.recv() for count in counts)
    return ChurnFigures(
        rss_mib=max_rss_mib,
        p99_ms=quantile([*new_ms, *kept_ms], 0.99),
        new_p99_ms=quantile(new_ms, 0.99),
        kept_p99_ms=quantile(kept_ms, 0.99),
        connections=connections,
    )


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 if a row exceeds its limit."""
    flags: argparse.ArgumentParser = parser("churn", __doc__)
    add_other(flags)
    options = flags.parse_args(argv)
    show_machine()
    has_failed = False
    for churn_row in churns():
        rounds: dict[str, list[ChurnFigures]] = {}
        for _ in range(options.rounds):
            load = Load()
            servers: list[AbstractContextManager[Server]]
            servers = [*ours_and_other(load, options.other), bare(load)]
            for context in servers:
                with context as server:
                    rounds.setdefault(server.name, []).append(measure(server, churn_row))
        figures = {name: medians(measured) for name, measured in rounds.items()}
        *_, reference = figures.values()
        rows = [figure.row(name, reference) for name, figure in figures.items()]
        show(churn_row.name, COLUMNS, rows)
        has_failed |= bool(rows[0][-1])
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
