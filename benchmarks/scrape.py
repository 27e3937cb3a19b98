"""What GET /metrics costs, on an idle server and while streams run."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import cores
from benchmarks.arrivals import Rhythm, pace, quantile
from benchmarks.background import Background, background
from benchmarks.connections import chat, exchange, get, opened
from benchmarks.options import parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.servers import OURS, Load, Server, bare, ours
from benchmarks.streams import StreamPlan

LOAD = Load(ttft_s=0.05, itl_s=0.02, tokens=100, streams=4000)
SPREAD_S = 1.0
WINDOW_S = 0.3
WINDOWS = 5
WINDOW_TOKENS = 200
PAUSE_S = 0.002
"""Between scrapes whose CPU is measured:

far more of them than in life, to be seen above the noise.
"""
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
    busy: list[Scrapes] = []
    warnings: list[str] = []
    beside: dict[float | None, list[Streams]] = {None: [], options.every / 1e3: []}
    with bare(LOAD) as reference, ours(LOAD) as server, background() as streams:
        idle: dict[Server, list[Scrapes]] = {reference: [], server: []}
        for idle_server in idle:
            _warm_up(idle_server)
        for _ in range(options.rounds):
            for idle_server, seen in idle.items():
                seen.append(scrape_idle(idle_server, options.scrapes))
            busy.append(scrape_busy(server, streams, options.streams))
            for every_s, observed in beside.items():
                observed.append(
                    stream_beside(
                        server, streams, count=options.streams, every_s=every_s, warnings=warnings
                    )
                )
    _show_scrapes(idle, busy, options.streams)
    _show_streams(beside, options.streams, warnings)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("scrape", __doc__)
    flags.add_argument(
        "--scrapes", type=int, default=500, help="scrapes of the idle server in a round"
    )
    flags.add_argument("--streams", type=int, default=500, help="streams of the busy server")
    flags.add_argument(
        "--every", type=float, default=50, help="milliseconds between scrapes of the busy server"
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


def scrape_busy(server: Server, streams: Background, count: int) -> Scrapes:
    """Cost of scrapes beside `count` streams.

    One run, in which windows with scrapes and without take turns; a scrape's CPU is the difference.
    """
    run = streams.play(_plan(server, count, WINDOW_TOKENS))
    time.sleep(SPREAD_S + WINDOW_S)
    quiet_s = 0.0
    scraping_s = 0.0
    walls_ms = []
    page = b""
    with opened(server.port, 1) as (sock,):
        for _ in range(WINDOWS):
            with used_by(server.worker) as quiet:
                time.sleep(WINDOW_S)
            with used_by(server.worker) as scraping:
                page, walls = _scrape(
                    sock, partial(_is_before, time.monotonic() + WINDOW_S), PAUSE_S
                )
            walls_ms += walls
            quiet_s += quiet.cpu_s / quiet.wall_s
            scraping_s += scraping.cpu_s / scraping.wall_s
    run.result()
    return _scrapes(page, walls_ms, (scraping_s - quiet_s) * WINDOW_S)


def stream_beside(
    server: Server, streams: Background, count: int, every_s: float | None, warnings: list[str]
) -> Streams:
    """How `count` streams do with a scrape each `every_s` seconds; None is no scrape.

    What disturbed the run is added to `warnings`.
    """
    rhythm = Rhythm(LOAD.ttft_s, LOAD.itl_s, skipped=server.role_chunks)
    with used_by(server.worker) as use, opened(server.port, 1) as (sock,):
        run = streams.play(_plan(server, count, LOAD.tokens))
        if every_s is not None:
            _scrape(sock, lambda: not run.done(), every_s)
        played = run.result()
    warnings += use.warnings(server.name) + played.client.warnings()
    seen = pace(played.arrivals, rhythm)
    return Streams(seen.chunk_p50_ms, seen.chunk_p99_ms, use.cpu_s / seen.chunks * 1e6)


def _is_before(end: float) -> bool:
    return time.monotonic() < end


def _plan(server: Server, streams: int, tokens: int) -> StreamPlan:
    return StreamPlan(
        server.port,
        streams,
        tokens=tokens,
        spread_s=SPREAD_S,
        length_s=LOAD.ttft_s + tokens * LOAD.itl_s,
    )


def _scrape(
    sock: socket.socket, go_on: Callable[[], bool], every_s: float
) -> tuple[bytes, list[float]]:
    """The last page, and how long each took, milliseconds."""
    page = b""
    walls_ms = []
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


def _show_scrapes(idle: dict[Server, list[Scrapes]], busy: Sequence[Scrapes], streams: int) -> None:
    middle = [(server.name, "0", medians(seen)) for server, seen in idle.items()]
    middle.append((OURS, str(streams), medians(busy)))
    reference = middle[0][2]
    rows = [
        (
            name,
            beside,
            number(row.page_kib, 1),
            number(row.cpu_us, 0),
            ratio(row.cpu_us, reference.cpu_us),
            number(row.p50_ms),
            number(row.p99_ms),
        )
        for name, beside, row in middle
    ]
    show("GET /metrics (the reference gives its short answer)", COLUMNS, rows)


def _show_streams(
    beside: dict[float | None, list[Streams]], streams: int, warnings: list[str]
) -> None:
    rows = []
    for every_s, seen in beside.items():
        row = medians(seen)
        name = "no scrapes" if every_s is None else f"a scrape each {every_s * 1e3:g} ms"
        rows.append(
            (name, number(row.chunk_p50_ms), number(row.chunk_p99_ms), number(row.cpu_us, 1))
        )
    show(f"{streams} streams beside scrapes", STREAM_COLUMNS, rows, warnings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
