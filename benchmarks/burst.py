"""Chunks per second of streams without any latency."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from benchmarks import closed_loop, cores, ctools
from benchmarks.connections import chat
from benchmarks.options import add_c_tools, add_other, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, ratio, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server

WARM_UP_S = 0.5
COLUMNS = ("server", "client", "chunks/s", "ratio", "CPU µs/chunk", "server CPU", "client CPU")


@dataclass(frozen=True, slots=True)
class Round:
    """One server, once."""

    per_s: float
    cpu_us: float
    server_cpu: float
    client_cpu: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    warnings: list[str] = []
    load = Load(tokens=options.tokens, streams=options.streams)
    with ctools.compared(load, options.csrv, options.other) as servers:
        clients = ["python", "C"] if options.sseload else ["python"]
        for server in servers:
            closed_loop.run(
                server.port, options.streams, WARM_UP_S, _requests(options), streams=True
            )
        rounds = interleaved(
            [(server, client) for client in clients for server in servers],
            options.rounds,
            lambda pair: measure(*pair, options, warnings),
        )
    _show(rounds, options, warnings)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("burst", __doc__)
    flags.add_argument("--streams", type=int, default=64, help="streams at once")
    flags.add_argument("--tokens", type=int, default=128, help="length of a stream")
    flags.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    add_c_tools(flags)
    add_other(flags)
    return flags.parse_args(argv)


def _requests(options: argparse.Namespace) -> Iterator[bytes]:
    return repeat(chat(options.tokens, stream=True))


def measure(server: Server, client: str, options: argparse.Namespace, warnings: list[str]) -> Round:
    """One round; what disturbed it is added to `warnings`."""
    with used_by(server.worker) as use:
        if client == "C":
            per_s, health = ctools.burst(
                options.sseload,
                server.port,
                streams=options.streams,
                tokens=options.tokens,
                role_chunks=server.role_chunks,
                seconds=options.seconds,
            )
            wall_s = options.seconds
        else:
            run = closed_loop.run(
                server.port, options.streams, options.seconds, _requests(options), streams=True
            )
            # A role chunk is not a token.
            counted = options.tokens / (options.tokens + server.role_chunks)
            per_s = run.units * counted / run.wall_s
            wall_s = run.wall_s
            health = run.client
    warnings += health.warnings() + use.warnings(server.name)
    server_cpu = min(1.0, use.cpu_s / wall_s)
    return Round(per_s, use.cpu_s / (per_s * wall_s) * 1e6, server_cpu, health.cpu)


def _show(
    rounds: dict[tuple[Server, str], list[Round]], options: argparse.Namespace, warnings: list[str]
) -> None:
    middle = {key: medians(seen) for key, seen in rounds.items()}
    references = {client: row for (server, client), row in reversed(middle.items())}
    rows = [
        (
            server.name,
            client,
            number(row.per_s, 0),
            ratio(row.per_s, references[client].per_s),
            number(row.cpu_us),
            share(row.server_cpu),
            share(row.client_cpu),
        )
        for (server, client), row in middle.items()
    ]
    show(
        f"Zero latency, {options.streams} streams of {options.tokens} tokens",
        COLUMNS,
        rows,
        warnings,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
