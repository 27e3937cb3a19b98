"""What a chunk of a paced stream costs in each family of routes, beside one of a plain chat.

A chunk bears its share of the request, so all families stream about as many tokens. The markup of a
tool call has tokens without chunks, so ratios are shown for tokens too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import cores
from benchmarks.arrivals import Arrivals
from benchmarks.families import FAMILIES, streams_of
from benchmarks.options import add_other, parser
from benchmarks.processes import used_by
from benchmarks.report import medians, middle_ratio, number, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import Load, Server, ours_and_other
from benchmarks.streams import StreamPlan, play

PLAIN = "plain"
STREAMED = (PLAIN, "logprobs", "required tool", "JSON schema", "Responses", "Messages")
COLUMNS = (
    *("server", "family", "chunks/stream", "tokens/stream"),
    *("CPU µs/chunk", "ratio", "CPU µs/token", "ratio", "client CPU"),
)
WARM_UP_STREAMS = 50
SPREAD_S = 1.0
"""Time over which the streams of a round begin."""


@dataclass(frozen=True, slots=True)
class Round:
    """One family on one server, once; the request is part of its chunks' CPU."""

    chunks: float
    """Of one stream."""
    tokens: float
    """Of one stream, by its duration."""
    chunk_us: float
    """CPU of the server for one chunk."""
    token_us: float
    client_cpu: float


Key = tuple[Server, str]


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(options.ttft / 1e3, options.itl / 1e3, options.tokens, options.streams)
    with ExitStack() as stack:
        servers = [stack.enter_context(server) for server in ours_and_other(load, options.other)]
        families = list(dict.fromkeys((PLAIN, *options.families)))
        compare(servers, families, load, options)
    return 0


def compare(
    servers: Sequence[Server], families: Sequence[str], load: Load, options: argparse.Namespace
) -> None:
    """Plays streams of the families in turns, and shows a table.

    `options` are --streams, --tokens and --rounds.
    """
    warnings: list[str] = []

    def measure(key: Key) -> Round:
        server, family = key
        plan = StreamPlan(
            port=server.port,
            streams=options.streams,
            tokens=options.tokens,
            spread_s=SPREAD_S,
            length_s=load.length_s,
            requests=streams_of(family, options.tokens),
        )
        with used_by(server.worker) as use:
            run = play(plan)
        if run.unfinished:
            warnings.append(f"{run.unfinished} streams of {family} did not finish")
        warnings.extend(use.warnings(server.name))
        chunks = sum(len(stream.chunks_ns) for stream in run.arrivals)
        tokens = sum(token_count(stream, load.itl_s) for stream in run.arrivals)
        return Round(
            chunks=chunks / options.streams,
            tokens=tokens / options.streams,
            chunk_us=use.cpu_s / chunks * 1e6,
            token_us=use.cpu_s / tokens * 1e6,
            client_cpu=run.client.cpu,
        )

    for server in servers:
        for family in families:
            requests = streams_of(family, options.tokens)
            play(
                StreamPlan(
                    server.port,
                    WARM_UP_STREAMS,
                    tokens=options.tokens,
                    spread_s=0.1,
                    length_s=1.0,
                    requests=requests,
                )
            )
    keys = [(server, family) for server in servers for family in families]
    rounds = interleaved(keys, options.rounds, measure)
    rows = []
    for (server, family), seen in rounds.items():
        row = medians(seen)
        plain = rounds[server, PLAIN]
        rows.append(
            (
                server.name,
                family,
                number(row.chunks, 0),
                number(row.tokens, 0),
                number(row.chunk_us, 1),
                middle_ratio(
                    [round_.chunk_us for round_ in seen], [round_.chunk_us for round_ in plain]
                ),
                number(row.token_us, 1),
                middle_ratio(
                    [round_.token_us for round_ in seen], [round_.token_us for round_ in plain]
                ),
                share(row.client_cpu),
            )
        )
    show(f"{options.streams} streams of {options.tokens} tokens", COLUMNS, rows, warnings)


def token_count(stream: Arrivals, itl_s: float) -> float:
    """Returns the number of tokens of a stream, from the time between its first and last chunk."""
    if not stream.chunks_ns:
        return 0
    duration_s = (stream.chunks_ns[-1] - stream.chunks_ns[0]) / 1e9
    return 1 + duration_s / itl_s


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("chunks", __doc__)
    flags.add_argument("--streams", type=int, default=200)
    flags.add_argument("--tokens", type=int, default=100, help="approximate length of a stream")
    flags.add_argument("--itl", type=float, default=20, help="milliseconds between tokens")
    flags.add_argument("--ttft", type=float, default=50, help="milliseconds until the first token")
    flags.add_argument(
        "--families",
        nargs="+",
        choices=[family for family in FAMILIES if family in STREAMED],
        default=STREAMED,
        help="what is streamed beside plain chats",
    )
    add_other(flags)
    return flags.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
