"""Requests per second of short replies that are not streamed, with known and new prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, repeat

from benchmarks import closed_loop, cores
from benchmarks.arrivals import quantile
from benchmarks.connections import chat, completion
from benchmarks.options import add_other, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, middle_ratio, number, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server, bare, both

WARM_UP_S = 1.0
KINDS = ("chat-known", "chat-new", "completion-known", "completion-new")
COLUMNS = (
    *("server", "requests/s", "ratio", "CPU µs/request", "CPU ratio"),
    *("p50 ms", "p99 ms", "server CPU", "client CPU"),
)


@dataclass(frozen=True, slots=True)
class Round:
    """One server, once."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    server_cpu: float
    client_cpu: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(streams=options.connections)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server) for server in (bare(load), *both(load, options.other))
        ]
        for kind in options.kinds:
            title = f"Short replies, {kind.replace('-', ', ')} prompt, {options.connections} connections"
            compare(title, servers, _requests(kind, options.tokens), options)
    return 0


def _requests(kind: str, tokens: int) -> Iterator[bytes]:
    """Requests without an end; a new prompt is eight words and a number that no request before it
    had.
    """
    route, prompts = kind.split("-")
    new = (f"What is new about the number {n} today?" for n in count())
    texts = repeat("hi") if prompts == "known" else new
    for text in texts:
        yield chat(tokens, False, text) if route == "chat" else completion(tokens, text)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("requests", __doc__)
    flags.add_argument("--connections", type=int, default=32)
    flags.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    flags.add_argument("--tokens", type=int, default=5, help="longest reply")
    flags.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is asked")
    add_other(flags)
    return flags.parse_args(argv)


def compare(
    title: str, servers: Sequence[Server], requests: Iterator[bytes], options: argparse.Namespace
) -> None:
    """Load the servers in turns with `requests`, which do not end, and show a table.

    The first server is the reference. `options` are --rounds, --connections and --seconds.
    """
    warnings: list[str] = []
    for server in servers:
        closed_loop.run(server.port, options.connections, WARM_UP_S, requests, streams=False)
    rounds = interleaved(
        servers, options.rounds, lambda server: _measure(server, requests, options, warnings)
    )
    _show(title, rounds, warnings)


def _measure(
    server: Server, requests: Iterator[bytes], options: argparse.Namespace, warnings: list[str]
) -> Round:
    """One round; what disturbed it is added to `warnings`."""
    with used_by(server.worker) as use:
        run = closed_loop.run(
            server.port, options.connections, options.seconds, requests, streams=False
        )
    warnings += run.client.warnings() + use.warnings(server.name)
    return Round(
        per_s=run.units / run.wall_s,
        cpu_us=use.cpu_s / run.units * 1e6,
        p50_ms=quantile(run.latencies_ms, 0.5),
        p99_ms=quantile(run.latencies_ms, 0.99),
        server_cpu=min(1.0, use.cpu_s / run.wall_s),
        client_cpu=run.client.cpu,
    )


def _show(title: str, rounds: dict[Server, list[Round]], warnings: list[str]) -> None:
    reference = next(iter(rounds.values()))
    rows = []
    for server, seen in rounds.items():
        row = medians(seen)
        rows.append(
            (
                server.name,
                number(row.per_s, 0),
                middle_ratio([one.per_s for one in seen], [one.per_s for one in reference]),
                number(row.cpu_us, 0),
                middle_ratio([one.cpu_us for one in seen], [one.cpu_us for one in reference]),
                number(row.p50_ms),
                number(row.p99_ms),
                share(row.server_cpu),
                share(row.client_cpu),
            )
        )
    show(title, COLUMNS, rows, warnings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
