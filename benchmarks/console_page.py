"""The console's page in Chromium: its latencies beside a client's, and what it takes while nothing
moves.

Machines are late, too: how late, a bare server with the constant load tells, in the same run. Needs
Playwright and Chromium (make browser; CHROMIUM names another program).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import cores
from benchmarks.arrivals import MS, Arrivals
from benchmarks.background import Background, background
from benchmarks.connections import HOST
from benchmarks.processes import PROC, usage
from benchmarks.report import number, share, show, show_machine
from benchmarks.servers import Load, Server, bare, ours
from benchmarks.streams import StreamPlan

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOAD = Load(0.3, 0.02, 60, 389)
"""A prime number of streams, which begin evenly: chunks of many do not all come at one moment."""
DRAWN = {"SIM_TIME_TO_FIRST_TOKEN_STD_DEV": "90ms", "SIM_INTER_TOKEN_LATENCY_STD_DEV": "6ms"}
LOADS = {"constant": {}, "drawn": DRAWN, "saturated": {**DRAWN, "SIM_MAX_NUM_SEQS": "8"}}
SHARES = (0.5, 0.9, 0.99)
MOST_OFF = 0.01
MOST_OFF_MS = 0.5
"""Greatest difference from the client's figure:

one of both must hold, or the machine is as late.
"""
MOST_IDLE = 0.02
"""Greatest share of a core that a page takes on which nothing moves."""
DRAWING = 15
"""Niceness of Chromium, which has the client's core and must not delay it; servers have another
core.
"""
CALM_S = 40.0
IDLE_S = 20.0
"""Seconds until a page stands still, and in which its CPU time is measured."""
COLUMNS = (
    "load",
    "latency",
    "figure",
    "client (ms)",
    "page (ms)",
    "difference",
    "bare server's lateness",
)
Row = tuple[str, str, str, float, float]


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when a figure is further off, or the idle page takes more, than it may."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    rows: list[Row] = []
    with ExitStack() as stack:
        streams = stack.enter_context(background())
        os.nice(DRAWING)
        page = stack.enter_context(_chromium())
        for name, settings in LOADS.items():
            with ours(
                LOAD, name=name, extra_settings={**settings, "SIM_CONSOLE": "true"}
            ) as server:
                rows += _measure(name, server, streams=streams, page=page, options=options)
                idle = _idle(page)
        with bare(LOAD) as server:
            late = _lateness(_played(server, streams, options))
    return _show(rows, late, idle)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.console_page", description=__doc__)
    flags.add_argument("--seconds", type=float, default=40.0, help="over which requests are sent")
    return flags.parse_args(argv)


@contextmanager
def _chromium() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def _measure(
    name: str, server: Server, streams: Background, page: Page, options: argparse.Namespace
) -> list[Row]:
    """Plays the load beside the page; returns the client's and the page's figures after it has
    drained.
    """
    page.goto(f"http://{HOST}:{server.port}/console")
    _wait(page, "model !== null")
    latencies = _played(server, streams, options)
    page.select_option("#window", "300")
    _wait(page, "model.bars.size > 0 && model.bars.size === model.over.length")
    page.evaluate("render()")
    return [
        (name, latency, figure, value, page_figures[figure])
        for latency, values in latencies.items()
        for page_figures in [_figures_of_page(page.inner_text(f"#{latency}-line"))]
        for figure, value in _figures(values)
    ]


def _played(
    server: Server, streams: Background, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Plays the load, and returns the client's latencies."""
    plan = StreamPlan(
        server.port,
        LOAD.streams,
        tokens=LOAD.tokens,
        spread_s=options.seconds,
        length_s=LOAD.length_s * LOAD.streams,
    )
    run = streams.play(plan).result()
    if run.unfinished:
        raise RuntimeError(f"{run.unfinished} streams of {server.name} did not finish")
    return _latencies(run.arrivals, server.role_chunks)


def _figures(values: Sequence[float]) -> list[tuple[str, float]]:
    return [(f"p{part * 100:.0f}", values[int(len(values) * part)]) for part in SHARES]


def _lateness(latencies: dict[str, list[float]]) -> dict[tuple[str, str, str], float]:
    """Returns how late a server is that does nothing but wait, in ms, by load, latency and figure."""
    planned = {"ttft": LOAD.ttft_s * 1e3, "itl": LOAD.itl_s * 1e3}
    return {
        ("constant", latency, figure): value - planned[latency]
        for latency, values in latencies.items()
        for figure, value in _figures(values)
    }


def _wait(page: Page, condition: str) -> None:
    """Waits at most ten seconds; the page's policy forbids `wait_for_function`."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise RuntimeError(f"the page does not come so far that {condition}")


def _latencies(arrivals: Sequence[Arrivals], role_chunks: int) -> dict[str, list[float]]:
    """TTFT and gaps in milliseconds, ascending; first chunks may have a role, and no token."""
    chunks = [stream.chunks_ns[role_chunks:] for stream in arrivals]
    ttft = [
        (stream_chunks[0] - stream.requested_ns) * MS
        for stream, stream_chunks in zip(arrivals, chunks, strict=True)
    ]
    gaps = [
        (late - early) * MS
        for stream_chunks in chunks
        for early, late in zip(stream_chunks, stream_chunks[1:], strict=False)
    ]
    return {"ttft": sorted(ttft), "itl": sorted(gaps)}


def _figures_of_page(line: str) -> dict[str, float]:
    matches = re.findall(r"(p\d\d) ([\d.]+) (s|ms)", line)
    return {name: float(value) * (1000 if unit == "s" else 1) for name, value, unit in matches}


def _idle(page: Page) -> float:
    """Share of a core that all processes of Chromium take, once the page stands still."""
    page.wait_for_timeout(CALM_S * 1000)
    before_s = _chromium_cpu_s()
    page.wait_for_timeout(IDLE_S * 1000)
    return (_chromium_cpu_s() - before_s) / IDLE_S


def _chromium_cpu_s() -> float:
    parents = {
        int(folder.name): _parent(folder) for folder in PROC.iterdir() if folder.name.isdecimal()
    }
    browser_pids = {os.getpid()}
    child_pids = browser_pids
    while child_pids:
        child_pids = {pid for pid, parent in parents.items() if parent in child_pids}
        browser_pids |= child_pids
    return sum(usage(pid).cpu_s for pid in browser_pids if "chrom" in _name(PROC / str(pid)))


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _name(process: Path) -> str:
    return (process / "comm").read_text()


def _show(rows: Sequence[Row], late: Mapping[tuple[str, str, str], float], idle: float) -> int:
    wrong = [
        f"{load}: {latency} {figure} is {page:g} ms on the page, {client:.1f} ms for the client"
        for load, latency, figure, client, page in rows
        if abs(page - client)
        > max(MOST_OFF * client, MOST_OFF_MS, late.get((load, latency, figure), 0.0))
    ]
    if idle > MOST_IDLE:
        wrong.append(f"the idle page takes {idle:.1%} of a core, and may take {MOST_IDLE:.0%}")
    table = [
        (
            *(load, latency, figure, number(client, 1), number(page, 1), f"{page - client:+.1f}"),
            number(late.get((load, latency, figure), 0.0), 1),
        )
        for load, latency, figure, client, page in rows
    ]
    show(f"The page beside a client; idle it takes {share(idle)} of a core", COLUMNS, table, wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
