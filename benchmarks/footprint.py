"""Memory of an idle server and of one with open streams, and the time until it answers.

The first chat has one token. It loads what an idle server does not need, so that memory is shown
before and after it, and streams are compared with the memory after it.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from benchmarks import cores
from benchmarks.background import Background, background
from benchmarks.connections import HOST, chat, exchange
from benchmarks.options import add_other, parser
from benchmarks.processes import pss_mib, rss_mib
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import BARE, MODULE, OURS, Load, Server, bare, ours
from benchmarks.streams import StreamPlan

SETTLE_S = 0.3
SPREAD_S = 1.0
LOAD = Load(ttft_s=0.05, itl_s=0.1, tokens=30, streams=4000)
"""Streams long enough that all of them are open together, slow enough that nobody is short of time.
"""
COLUMNS = (
    "server", "start-up s", "ratio", "arbiter RSS MiB", "worker RSS MiB", "both PSS MiB", "ratio",
    "first chat ms", "both PSS after it MiB", "worker RSS with streams MiB", "KiB/stream",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Footprint:
    """Seconds and MiB of one start."""

    start_s: float
    arbiter_mib: float
    worker_mib: float
    pss_mib: float
    first_chat_ms: float
    served_pss_mib: float
    served_worker_mib: float
    loaded_mib: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    starts: dict[str, Callable[[Load], AbstractContextManager[Server]]] = {
        BARE: bare,
        f"{OURS}, gunicorn wsgi:app": ours,
        f"{OURS}, python -m app": partial(ours, command=MODULE),
    }
    if other := options.other:
        starts[f"{OURS} of {other.name}, gunicorn wsgi:app"] = partial(ours, root=other.resolve())
    with background() as streams:

        def measured(name: str) -> Footprint:
            with starts[name](LOAD) as server:
                return measure(server, streams, options.streams)

        seen = interleaved(starts, options.rounds, measured)
    _show({name: medians(rounds) for name, rounds in seen.items()}, options.streams)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("footprint", __doc__)
    flags.add_argument("--streams", type=int, default=1000, help="streams of the loaded server")
    add_other(flags)
    return flags.parse_args(argv)


def measure(server: Server, streams: Background, count: int) -> Footprint:
    """One server that has just started."""
    time.sleep(SETTLE_S)
    processes = {server.arbiter, server.worker}
    worker_mib = rss_mib(server.worker)
    together_mib = sum(map(pss_mib, processes))
    first_chat_ms = _chat_ms(server)
    time.sleep(SETTLE_S)
    return Footprint(
        start_s=server.start_s,
        arbiter_mib=rss_mib(server.arbiter),
        worker_mib=worker_mib,
        pss_mib=together_mib,
        first_chat_ms=first_chat_ms,
        served_pss_mib=sum(map(pss_mib, processes)),
        served_worker_mib=rss_mib(server.worker),
        loaded_mib=_loaded_mib(server, streams, count),
    )


def _chat_ms(server: Server) -> float:
    """Milliseconds until the reply of one token to a chat that is not streamed."""
    with socket.create_connection((HOST, server.port), timeout=5) as sock:
        begun = time.monotonic()
        exchange(sock, chat(1, stream=False))
        return (time.monotonic() - begun) * 1000


def _loaded_mib(server: Server, streams: Background, count: int) -> float:
    """Most resident memory of the worker while `count` streams are open."""
    run = streams.play(
        StreamPlan(
            server.port, count, tokens=LOAD.tokens, spread_s=SPREAD_S, length_s=LOAD.length_s
        )
    )
    peak_mib = 0.0
    while not run.done():
        peak_mib = max(peak_mib, rss_mib(server.worker))
        time.sleep(0.05)
    if unfinished := run.result().unfinished:
        raise RuntimeError(f"{unfinished} streams of {server.name} did not finish")
    return peak_mib


def _show(middle: dict[str, Footprint], streams: int) -> None:
    reference = middle[BARE]
    rows = [
        (
            name,
            number(row.start_s),
            ratio(row.start_s, reference.start_s),
            number(row.arbiter_mib, 1),
            number(row.worker_mib, 1),
            number(row.pss_mib, 1),
            ratio(row.pss_mib, reference.pss_mib),
            number(row.first_chat_ms, 1),
            number(row.served_pss_mib, 1),
            number(row.loaded_mib, 1),
            number((row.loaded_mib - row.served_worker_mib) * 1024 / streams, 1),
        )
        for name, row in middle.items()
    ]
    show(f"Footprint, idle and with {streams:,} streams", COLUMNS, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
