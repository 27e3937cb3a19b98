"""How long lookups in a dataset keep the event loop from its other work, in its thread and beside
it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import gevent

from app.core.text.huggingface import default_tokenizer
from app.extensions.datasets.catalogue import ids_hash
from app.extensions.datasets.command import Record, write_sqlite
from app.extensions.datasets.dataset import Dataset
from app.extensions.datasets.tokens import RecordedTokens
from benchmarks.arrivals import quantile
from benchmarks.options import parser
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.rounds import interleaved

TABLE = "llmd"
TICK_S = 0.001
SHORTEST = 10
LONGEST = 400
NOTHING = "no lookups"
INLINE = "in the event loop"
BESIDE = "in threads beside it"
MEMORY = "copy in memory"
COLUMNS = (
    "where lookups run", "file", "lookups/s", "lookup p50 ms", "lookup p99 ms",
    "stall p99 ms", "stall max ms", "ratio",
)  # fmt: skip
WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print("ready", flush=True)
while True:
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(0.1)
    connection.execute("ROLLBACK")
    time.sleep(0.4)
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One way of looking up, once; a stall is how late a greenlet wakes that sleeps a millisecond."""

    per_s: float
    lookup_p50_ms: float
    lookup_p99_ms: float
    stall_p99_ms: float
    stall_max_ms: float


class Inline(Dataset):
    """Replies of a file, read in the thread of the event loop."""

    def read(self, key: int) -> object:
        return self.read_here(key)


class Beside(Dataset):
    """Replies of a file, read as a patched server reads them."""

    def read(self, key: int) -> object:
        return gevent.get_hub().threadpool.apply(self.read_here, (key,))


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "replies.sqlite3")
        write_sqlite(path, TABLE, _records(options.rows))
        tokenizer = default_tokenizer()
        datasets = {
            NOTHING: None,
            INLINE: Inline(path, TABLE, False, tokenizer),
            BESIDE: Beside(path, TABLE, False, tokenizer),
            MEMORY: Dataset(path, TABLE, True, tokenizer),
        }
        subjects = [(where, written) for written in (False, True) for where in datasets]

        def measure(subject: tuple[str, bool]) -> Round:
            where, written = subject
            with writer(path) if written else nullcontext():
                return _round(datasets[where], options)

        _show(interleaved(subjects, options.rounds, measure), options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("dataset", __doc__)
    flags.add_argument("--rows", type=int, default=100_000, help="rows of the file")
    flags.add_argument("--clients", type=int, default=32, help="greenlets that look up")
    flags.add_argument(
        "--every", type=float, default=50, help="milliseconds between two lookups of each"
    )
    flags.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    return flags.parse_args(argv)


def _records(count: int) -> Iterator[Record]:
    """Prompt i is the single id i."""
    rng = Random(1)
    for i in range(count):
        length = rng.randint(SHORTEST, LONGEST)
        ids = [rng.randrange(30_000) for _ in range(length)]
        yield Record(ids_hash([i]), RecordedTokens(ids, [" word"] * length))


@contextmanager
def writer(path: Path) -> Iterator[None]:
    """Another process that has the file for itself for 100 of every 500 ms."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def _round(dataset: Dataset | None, options: argparse.Namespace) -> Round:
    """`dataset` under the load of the options; None is the event loop alone."""
    stalls_ms: list[float] = []
    lookups_ms: list[float] = []
    end_s = time.monotonic() + options.seconds
    running = [gevent.spawn(_tick, end_s, stalls_ms)]
    if dataset is not None:
        look_up = partial(_look_up, dataset, options, end_s, lookups_ms)
        running += [gevent.spawn(look_up, client) for client in range(options.clients)]
    gevent.joinall(running, raise_error=True)
    lookup_figures_ms = lookups_ms or [float("nan")]
    return Round(
        per_s=len(lookups_ms) / options.seconds,
        lookup_p50_ms=quantile(lookup_figures_ms, 0.5),
        lookup_p99_ms=quantile(lookup_figures_ms, 0.99),
        stall_p99_ms=quantile(stalls_ms, 0.99),
        stall_max_ms=max(stalls_ms),
    )


def _tick(end_s: float, stalls_ms: list[float]) -> None:
    while (begun_s := time.monotonic()) < end_s:
        gevent.sleep(TICK_S)
        stalls_ms.append((time.monotonic() - begun_s - TICK_S) * 1e3)


def _look_up(
    dataset: Dataset,
    options: argparse.Namespace,
    end_s: float,
    lookups_ms: list[float],
    client: int,
) -> None:
    rng = Random(client)
    pause_s = options.every / 1e3
    gevent.sleep(rng.random() * pause_s)
    while (begun_s := time.monotonic()) < end_s:
        if (
            dataset.reply(
                [rng.randrange(options.rows)], (), min_tokens=1, max_tokens=LONGEST, rng=rng
            )
            is None
        ):
            raise RuntimeError(f"{dataset.name}: no reply")
        lookups_ms.append((time.monotonic() - begun_s) * 1e3)
        gevent.sleep(pause_s)


def _show(rounds: dict[tuple[str, bool], list[Round]], options: argparse.Namespace) -> None:
    middle = {subject: medians(seen) for subject, seen in rounds.items()}
    rows = [
        (
            where,
            "written to" if written else "quiet",
            number(row.per_s, 0),
            number(row.lookup_p50_ms),
            number(row.lookup_p99_ms),
            number(row.stall_p99_ms),
            number(row.stall_max_ms),
            ratio(row.stall_max_ms, middle[INLINE, written].stall_max_ms),
        )
        for (where, written), row in middle.items()
    ]
    show(f"Lookups in a dataset of {options.rows:,} rows, stalls of the event loop", COLUMNS, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
