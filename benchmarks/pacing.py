"""How close to its due moment each chunk of many paced streams arrives, and what a chunk costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import cores, ctools
from benchmarks.arrivals import Pace, Rhythm
from benchmarks.options import add_c_tools, add_other, counts, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, number, ratio, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import BARE, Load, Server
from benchmarks.streams import Observation, StreamPlan, observe, play

WARM_UP_STREAMS = 50
WARM_UP_TOKENS = 10
COLUMNS = (
    "server", "client", "speed", "TTFT p50", "TTFT p99", "chunk p50", "chunk p99", "chunk max", "drift",
    "CPU µs/chunk", "/ bare", "/ C", "client CPU", "client lag p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of the server, microseconds a chunk; the client's share of its core and its lateness."""

    cpu_us: float
    client_cpu: float
    client_lag_ms: float


Key = tuple[Server, str]
Rounds = dict[Key, list[tuple[Pace, Cost]]]


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(options.ttft / 1e3, options.itl / 1e3, options.tokens, max(options.streams))
    with ctools.compared(load, options.csrv, options.other) as servers:
        for server in servers:
            play(
                StreamPlan(
                    server.port,
                    WARM_UP_STREAMS,
                    tokens=WARM_UP_TOKENS,
                    spread_s=0.1,
                    length_s=load.length_s,
                )
            )
        for streams in options.streams:
            _compare(servers, streams, load, options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("pacing", __doc__)
    flags.add_argument(
        "--streams", type=counts, default=[100, 1000, 2500], help="numbers, with commas"
    )
    flags.add_argument("--tokens", type=int, default=100, help="length of a stream")
    flags.add_argument("--itl", type=float, default=20, help="milliseconds between tokens")
    flags.add_argument("--ttft", type=float, default=50, help="milliseconds until the first token")
    flags.add_argument(
        "--spread", type=float, help="seconds over which streams begin; 1, from 2000 streams on 2"
    )
    add_c_tools(flags)
    add_other(flags)
    return flags.parse_args(argv)


def _compare(
    servers: Sequence[Server], streams: int, load: Load, options: argparse.Namespace
) -> None:
    spread_s = options.spread if options.spread is not None else (2.0 if streams >= 2000 else 1.0)
    watch: dict[str, Callable[[StreamPlan, Rhythm], Observation]] = {"python": observe}
    if options.sseload:
        watch["C"] = partial(ctools.observe, options.sseload)
    warnings: list[str] = []

    def measure(key: Key) -> tuple[Pace, Cost]:
        server, client = key
        plan = StreamPlan(
            server.port, streams, tokens=options.tokens, spread_s=spread_s, length_s=load.length_s
        )
        rhythm = Rhythm(load.ttft_s, load.itl_s, server.role_chunks)
        with used_by(server.worker) as use:
            observed = watch[client](plan, rhythm)
        warnings.extend(observed.warnings(server.name, rhythm) + use.warnings(server.name))
        return observed.pace, _cost(observed, use.cpu_s)

    rounds = interleaved(
        [(server, client) for client in watch for server in servers], options.rounds, measure
    )
    _show(f"{streams:,} streams of {options.tokens} tokens, errors in ms", rounds, warnings)


def _cost(observed: Observation, cpu_s: float) -> Cost:
    cpu_us = cpu_s / observed.pace.chunks * 1e6
    return Cost(cpu_us, observed.client.cpu, observed.client.lag_p99_ms)


def _show(title: str, rounds: Rounds, warnings: Sequence[str]) -> None:
    middle = {
        key: (medians([figures for figures, _ in seen]), medians([cost for _, cost in seen]))
        for key, seen in rounds.items()
    }
    costs = {(server.name, client): cost.cpu_us for (server, client), (_, cost) in middle.items()}
    rows = [_row(server.name, client, *middle[server, client], costs) for server, client in middle]
    show(title, COLUMNS, rows, warnings)


def _row(
    name: str, client: str, figures: Pace, cost: Cost, costs: dict[tuple[str, str], float]
) -> list[str]:
    bare_us = costs[BARE, client]
    c_us = costs.get((ctools.CSRV, client), float("nan"))
    errors = [
        figures.ttft_p50_ms, figures.ttft_p99_ms, figures.chunk_p50_ms, figures.chunk_p99_ms,
        figures.chunk_max_ms, figures.drift_ms,
    ]  # fmt: skip
    return [
        name,
        client,
        share(figures.speed),
        *map(number, errors),
        number(cost.cpu_us, 1),
        ratio(cost.cpu_us, bare_us),
        ratio(cost.cpu_us, c_us),
        share(cost.client_cpu),
        number(cost.client_lag_ms),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
