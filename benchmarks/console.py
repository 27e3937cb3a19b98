"""What the console costs:

a server without it, one at which nobody looks, and one at which somebody does.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cores
from benchmarks.background import Background, background
from benchmarks.connections import HOST
from benchmarks.options import add_other, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import OURS, ROOT, Load, Server, ours
from benchmarks.steps import PROFILE
from benchmarks.streams import StreamPlan
from benchmarks.withheld import kept_awake

WITHOUT = "no console"
UNSEEN = "nobody looks"
SEEN = "somebody looks"
REQUESTS = "latencies of their own"
STEPS = "steps and a KV cache"
COLUMNS = (
    *("checkout", "timing", "console", "chunks/s", "CPU", "CPU per chunk"),
    *("relative", "KB/s to the page"),
)
Key = tuple[str, str, str]
"""Checkout, timing, console."""
LIMIT = 0.03
"""Of a core, that looking may take."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one round: chunks a second, share of a core, kilobytes a second that the page got."""

    per_s: float
    cpu: float
    page_kb_s: float

    @property
    def chunk_us(self) -> float:
        """Microseconds of CPU time for a chunk."""
        return self.cpu / self.per_s * 1e6


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when looking takes more than it may."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(0.05, options.itl / 1e3, options.tokens, options.streams)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(kept_awake())
        streams = stack.enter_context(background())
        servers: dict[Key, Server] = {}
        for checkout, root in _checkouts(options.other).items():
            for timing in (REQUESTS, STEPS):
                for console, settings in _settings(timing, options, folder).items():
                    name = f"{checkout}, {timing}, {console}"
                    server = ours(load, name=name, root=root, extra_settings=settings)
                    servers[checkout, timing, console] = stack.enter_context(server)
        rounds = interleaved(
            list(servers),
            options.rounds,
            lambda key: _measure(servers[key], streams, load, key[2] == SEEN),
        )
    return _show({key: medians(seen) for key, seen in rounds.items()}, options)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("console", __doc__)
    flags.add_argument("--streams", type=int, default=1000, help="that run at the same time")
    flags.add_argument("--tokens", type=int, default=160, help="length of a stream")
    flags.add_argument("--itl", type=float, default=50, help="milliseconds between tokens")
    add_other(flags)
    return flags.parse_args(argv)


def _checkouts(other: Path | None) -> dict[str, Path]:
    """Folders of the measured checkouts by name."""
    checkouts = {OURS: ROOT}
    if other is not None:
        checkouts[other.name] = other.resolve()
    return checkouts


def _settings(
    timing: str, options: argparse.Namespace, folder: Path
) -> Mapping[str, Mapping[str, str]]:
    settings: dict[str, str] = {"SIM_ZMQ_ENDPOINT": '""'}
    if timing == STEPS:
        profile = folder / "profile.yaml"
        step_s = options.itl / 1e3
        profile.write_text(
            PROFILE.format(streams=options.streams, caching="true", step_s=step_s), encoding="utf-8"
        )
        settings |= {
            "SIM_PROFILE": str(profile),
            "SIM_ENABLE_KVCACHE": "true",
            "SIM_KV_CACHE_SIZE": "40000",
        }
    console_settings = {**settings, "SIM_CONSOLE": "true"}
    return {WITHOUT: settings, UNSEEN: console_settings, SEEN: console_settings}


def _measure(server: Server, streams: Background, load: Load, looks: bool) -> Cost:
    """Streams that all begin within the time between two tokens, so that nearly all of the time all
    run.
    """
    plan = StreamPlan(
        server.port, load.streams, tokens=load.tokens, spread_s=load.itl_s, length_s=load.length_s
    )
    with looking(server.port) if looks else _nobody() as page, used_by(server.worker) as use:
        run = streams.play(plan).result()
        got = page.bytes
    if run.unfinished:
        raise RuntimeError(f"{run.unfinished} streams of {server.name} did not finish")
    chunks = sum(len(stream.chunks_ns) for stream in run.arrivals)
    return Cost(chunks / use.wall_s, use.cpu_s / use.wall_s, got / use.wall_s / 1e3)


class Page:
    """A browser that reads the stream, and no more."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, sock: socket.socket) -> None:
        """Until the connection ends."""
        while data := sock.recv(1 << 16):
            self.bytes += len(data)


@contextmanager
def _nobody() -> Iterator[Page]:
    yield Page()


@contextmanager
def looking(port: int) -> Iterator[Page]:
    """Somebody looks while the block lasts."""
    page = Page()
    with socket.create_connection((HOST, port), timeout=30) as sock:
        sock.sendall(b"GET /admin/console/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader = threading.Thread(target=page.read, args=(sock,), daemon=True)
        reader.start()
        yield page
        sock.shutdown(socket.SHUT_RDWR)
        reader.join(5)


def _show(middle: Mapping[Key, Cost], options: argparse.Namespace) -> int:
    """Shows CPU times relative to a server without the console."""
    rows = []
    max_cpu_of_looking = 0.0
    for (checkout, timing, console), cost in middle.items():
        relative = cost.chunk_us / middle[checkout, timing, WITHOUT].chunk_us
        if console == SEEN:
            unseen = middle[checkout, timing, UNSEEN]
            max_cpu_of_looking = max(max_cpu_of_looking, cost.cpu - unseen.cpu)
        rows.append(
            (
                checkout,
                timing,
                console,
                number(cost.per_s, 0),
                share(cost.cpu),
                f"{cost.chunk_us:.1f} µs",
                f"{relative:.3f}x",
                number(cost.page_kb_s, 0) if cost.page_kb_s else "",
            )
        )
    title = f"The console, {options.streams:,} streams, a token every {options.itl:g} ms"
    warnings = []
    if max_cpu_of_looking > LIMIT:
        warnings.append(
            f"looking takes {max_cpu_of_looking:.1%} of a core, and may take {LIMIT:.0%}"
        )
    show(title, COLUMNS, rows, warnings)
    return int(bool(warnings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
