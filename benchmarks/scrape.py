"""What GET /metrics costs, on an idle server and while streams run."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import cores
from benchmarks.arrivals import Pace, Rhythm, pace, quantile
from benchmarks.background import Background, background
from benchmarks.connections import chat, exchange, get, opened
from benchmarks.options import parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.servers import Load, Server, bare, ours
from benchmarks.streams import StreamPlan

LOAD = Load(ttft_s=0.05, itl_s=0.02, tokens=100, streams=4000)
SPREAD_S = 1.0
PAGE = get("/metrics")
COLUMNS = ("server", "streams", "page KiB", "CPU µs/scrape", "ratio", "p50 ms", "p99 ms")
STREAM_COLUMNS = ("understudy", "chunk p50 ms", "chunk p99 ms", "CPU µs/chunk")


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Cost of a scrape: server CPU, and wall time as the scraper sees it."""

    page_kib: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Streams:
    """How streams did beside it."""

    chunk_p50_ms: float
    chunk_p99_ms: float
    cpu_us: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    idle: dict[Server, list[Scrapes]] = {}
    busy: list[tuple[Scrapes, Streams, Streams]] = []
    with bare(LOAD) as reference, ours(LOAD) as server, background() as streams:
        idle = {reference: [], server: []}
        for each in idle:
            _warm_up(each)
        for _ in range(options.rounds):
            for each, seen in idle.items():
                seen.append(scrape_idle(each, options.scrapes))
            busy.append(scrape_busy(server, streams, options.streams, options.every / 1e3))
    _show(idle, busy, options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("scrape", __doc__)
    flags.add_argument("--scrapes", type=int, default=500, help="scrapes of the idle server in a round")
    flags.add_argument("--streams", type=int, default=500, help="streams of the busy server")
    flags.add_argument(
        "--every", type=float, default=20, help="milliseconds between scrapes of the busy server"
    )
    return flags.parse_args(argv)


def _warm_up(server: Server) -> None:
    """Some answers first, so that there is something to show."""
    with opened(server.port, 1) as (sock,):
        for _ in range(20):
            exchange(sock, chat(5, stream=False))
            exchange(sock, PAGE)


def scrape_idle(server: Server, scrapes: int) -> Scrapes:
    """One scrape after the other."""
    left = iter(range(scrapes))
    with used_by(server.worker) as use, opened(server.port, 1) as (sock,):
        page, walls_ms = _scrape(sock, lambda: next(left, None) is not None, every_s=0.0)
    return _scrapes(page, walls_ms, use.cpu_s)


def scrape_busy(
    server: Server, streams: Background, count: int, every_s: float
) -> tuple[Scrapes, Streams, Streams]:
    """Cost of scrapes beside `count` streams, and how the streams do without and with them.

    A scrape's CPU is the difference between the two runs.
    """
    plan = StreamPlan(server.port, count, LOAD.tokens, SPREAD_S, LOAD.length_s)
    rhythm = Rhythm(LOAD.ttft_s, LOAD.itl_s, skipped=server.role_chunks)
    with used_by(server.worker) as without:
        before = pace(streams.play(plan).result().arrivals, rhythm)
    with used_by(server.worker) as use, opened(server.port, 1) as (sock,):
        run = streams.play(plan)
        page, walls_ms = _scrape(sock, lambda: not run.done(), every_s)
        beside = pace(run.result().arrivals, rhythm)
    scrapes = _scrapes(page, walls_ms, use.cpu_s - without.cpu_s)
    return scrapes, _streams(before, without.cpu_s), _streams(beside, use.cpu_s)


def _scrape(sock: socket.socket, go_on: Callable[[], bool], every_s: float) -> tuple[bytes, list[float]]:
    """The last page, and how long each took, milliseconds."""
    page, walls_ms = b"", []
    due = time.monotonic()
    while go_on():
        begun = time.monotonic()
        page = exchange(sock, PAGE)
        walls_ms.append((time.monotonic() - begun) * 1e3)
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
    return page, walls_ms


def _scrapes(page: bytes, walls_ms: list[float], cpu_s: float) -> Scrapes:
    cpu_us = cpu_s / len(walls_ms) * 1e6
    return Scrapes(len(page) / 1024, cpu_us, quantile(walls_ms, 0.5), quantile(walls_ms, 0.99))


def _streams(seen: Pace, cpu_s: float) -> Streams:
    return Streams(seen.chunk_p50_ms, seen.chunk_p99_ms, cpu_s / seen.chunks * 1e6)


def _show(
    idle: dict[Server, list[Scrapes]],
    busy: Sequence[tuple[Scrapes, Streams, Streams]],
    options: argparse.Namespace,
) -> None:
    middle = [(server.name, "0", medians(seen)) for server, seen in idle.items()]
    middle.append((middle[-1][0], str(options.streams), medians([scrapes for scrapes, _, _ in busy])))
    reference = middle[0][2]
    rows = [
        (
            name,
            streams,
            number(row.page_kib, 1),
            number(row.cpu_us, 0),
            ratio(row.cpu_us, reference.cpu_us),
            number(row.p50_ms),
            number(row.p99_ms),
        )
        for name, streams, row in middle
    ]
    show("GET /metrics (the reference's page is its short answer)", COLUMNS, rows)
    without, beside = medians([each for _, each, _ in busy]), medians([each for _, _, each in busy])
    show(
        f"{options.streams} streams beside the scrapes",
        STREAM_COLUMNS,
        [
            (name, number(row.chunk_p50_ms), number(row.chunk_p99_ms), number(row.cpu_us, 1))
            for name, row in (("no scrapes", without), (f"a scrape each {options.every:g} ms", beside))
        ],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
