"""What the index of KV blocks costs, against a dict of sets per block with keys by cbor2 and
SHA-256.

Rates are per second of CPU time, so for one core, and those of the best round: neighbours on the
machine only ever take away. Events come over a TCP socket from another process.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from cachetools import LRUCache

from app.core.engine.kvcache.events import BlockStored
from app.extensions.kv_index.decoding import PodBatch
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend, weigh_bytes
from benchmarks.kv_checkout import MEASURES, SHAPES, key_calls, measured, per_s
from benchmarks.kv_ingest import blocks_per_s, into_index, into_naive
from benchmarks.kv_naive import BLOCK, MODEL, Fleet, Naive
from benchmarks.options import add_other, parser
from benchmarks.processes import collect_as_a_worker
from benchmarks.report import number, ratio, show, show_machine
from benchmarks.rounds import interleaved

NAIVE = "dict of sets, cbor2"
OURS = "index"
PACKED = ", packed ids"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second of CPU time."""

    per_s: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    collect_as_a_worker()
    if options.other is not None:
        _show_checkouts(options)
    _show_keys(options)
    _show_scores(options)
    _show_ingest(options)
    _show_memory(options)
    _show_tables(options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_index", __doc__, rounds=5)
    flags.add_argument("--pods", type=int, default=100, help="pods that hold prompts")
    flags.add_argument(
        "--tokens", type=int, default=8192, help="tokens of the prompt that is scored"
    )
    flags.add_argument(
        "--blocks", type=int, default=100_000, help="blocks that are published in a round"
    )
    add_other(flags)
    return flags.parse_args(argv)


def _show_checkouts(options: argparse.Namespace) -> None:
    """This checkout and another one, in turns, each measure in a process of its own."""
    other: Path = options.other.resolve()
    rows = []
    for measure in MEASURES:

        def rate(root: Path, measure: str = measure) -> Rate:
            return Rate(
                measured(
                    root, measure, tokens=options.tokens, blocks=options.blocks, pods=options.pods
                )
            )

        seen = interleaved((other, ROOT), options.rounds, rate)
        other_per_s, own_per_s = (max(rate.per_s for rate in rates) for rates in seen.values())
        rows.append(
            (measure, number(other_per_s, 0), number(own_per_s, 0), ratio(own_per_s, other_per_s))
        )
    title = f"Against another checkout: prompts of {options.tokens:,} tokens, or blocks, a second"
    show(title, ("what", other.name, OURS, "ratio"), rows)


def _show_keys(options: argparse.Namespace) -> None:
    fleet = Fleet()
    naive = Naive()
    index = Index(MemoryBackend())
    prompt = fleet.tokens(options.tokens // BLOCK)
    calls: dict[str, Callable[[], object]] = {NAIVE: lambda: list(naive.keys(prompt, naive.root))}
    calls |= key_calls(partial(index.block_keys, MODEL), prompt[:])
    packed = key_calls(partial(index.block_keys, MODEL), array("I", prompt))
    calls |= {measure + PACKED: call for measure, call in packed.items()}
    rounds = _rates(calls, options.rounds)
    _show_rates(
        f"Request keys of a prompt of {options.tokens:,} tokens", "prompts/s", rounds, NAIVE
    )


def _show_scores(options: argparse.Namespace) -> None:
    fleet = Fleet()
    naive = Naive()
    index = Index(MemoryBackend())
    blocks = options.tokens // BLOCK
    prompt = fleet.tokens(blocks)
    for pod in range(options.pods):
        # Every fourth pod has all of it, the others less.
        held = blocks if pod % 4 == 0 else 1 + pod * blocks // options.pods
        event = fleet.event(prompt[: held * BLOCK])
        naive.store(f"pod{pod}", event)
        _ingest(index, f"pod{pod}", event)
    if {score.pod: score.score for score in index.score(MODEL, prompt)} != naive.score(prompt):
        raise RuntimeError("the scores differ")
    calls: dict[str, Callable[[], object]] = {
        NAIVE: partial(naive.score, prompt),
        OURS: partial(index.score, MODEL, prompt),
    }
    rounds = _rates(calls, options.rounds)
    title = (
        f"Scores of a prompt of {options.tokens:,} tokens over {options.pods} pods that share it"
    )
    _show_rates(title, "requests/s", rounds, NAIVE)


def _show_ingest(options: argparse.Namespace) -> None:
    receives = {NAIVE: into_naive, OURS: into_index}
    for title, (events, blocks) in SHAPES.items():

        def measure(how: str, events: int = events, blocks: int = blocks) -> Rate:
            return Rate(
                blocks_per_s(
                    receives[how],
                    options.blocks,
                    events=events,
                    event_blocks=blocks,
                    pods=options.pods,
                )
            )

        rounds = interleaved(receives, options.rounds, measure)
        _show_rates(f"From the socket into the index, {title} a message", "blocks/s", rounds, NAIVE)


def _rates(calls: Mapping[str, Callable[[], object]], round_count: int) -> dict[str, list[Rate]]:
    """Measures the calls in turns."""

    def measure(how: str) -> Rate:
        return Rate(per_s(calls[how]))

    return interleaved(calls, round_count, measure)


def _show_rates(
    title: str, unit: str, rounds: Mapping[str, Sequence[Rate]], reference: str
) -> None:
    best = {how: max(seen, key=lambda rate: rate.per_s).per_s for how, seen in rounds.items()}
    rows = [(how, number(per_s, 0), ratio(per_s, best[reference])) for how, per_s in best.items()]
    show(title, ("how", unit, "ratio"), rows)


def _show_memory(options: argparse.Namespace) -> None:
    cases: dict[str, tuple[int, int, bool]] = {
        "1 pod": (1, 50_000, False),
        f"{options.pods} pods, nothing shared": (options.pods, 500, False),
        f"{options.pods} pods, all shared": (options.pods, 500, True),
        "10,000 pods, nothing shared": (10_000, 5, False),
    }
    rows = []
    for name, (pods, blocks, shared) in cases.items():
        ours, naive = (
            _bytes_per_pair(make, pods, blocks, shared) for make in (_filled_index, _filled_naive)
        )
        bound = _bound_per_pair(pods, blocks, shared)
        rows.append((name, number(ours, 0), number(bound, 0), number(naive, 0), ratio(ours, naive)))
    columns = ("who holds the blocks", "index", "reckoned by cost-aware", NAIVE, "ratio")
    show("Bytes of memory for each pair of block and pod", columns, rows)


def _ingest(index: Index, pod: str, event: BlockStored) -> None:
    index.ingest(IndexedEngine(pod, MODEL, 0), PodBatch(1.0, 0, [event]))


def _filled(
    pods: int, blocks: int, shared: bool, tell: Callable[[str, BlockStored], object]
) -> None:
    fleet = Fleet()
    prompt = fleet.tokens(blocks)
    for pod in range(pods):
        tell(f"pod{pod}", fleet.event(prompt if shared else fleet.tokens(blocks)))


def _filled_index(pods: int, blocks: int, shared: bool) -> object:
    # Bytes are weighed here, too, so that what is reckoned can be shown beside what is used.
    index = Index(MemoryBackend(1 << 40, weigh_bytes))
    _filled(pods, blocks, shared, partial(_ingest, index))
    return index


def _filled_naive(pods: int, blocks: int, shared: bool) -> object:
    naive = Naive()
    _filled(pods, blocks, shared, naive.store)
    return naive


def _bytes_per_pair(
    make: Callable[[int, int, bool], object], pods: int, blocks: int, shared: bool
) -> float:
    tracemalloc.start()
    held = make(pods, blocks, shared)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held
    return used / (pods * blocks)


def _bound_per_pair(pods: int, blocks: int, shared: bool) -> float:
    index: Any = _filled_index(pods, blocks, shared)
    return float(index.backend.size().weight) / (pods * blocks)


def _show_tables(options: argparse.Namespace) -> None:
    """Why the table of blocks is an OrderedDict."""
    tables: dict[str, Callable[[], MutableMapping[int, int]]] = {
        "cachetools.LRUCache": lambda: LRUCache(1 << 40),
        "OrderedDict": OrderedDict,
    }
    rng = Random(1)
    keys = [rng.getrandbits(64) for _ in range(options.blocks)]
    rounds = interleaved(
        tables, options.rounds, lambda name: Rate(_puts_per_s(tables[name](), keys))
    )
    title = "The table of blocks: a new block, then looking it up"
    _show_rates(title, "blocks/s", rounds, "cachetools.LRUCache")


def _puts_per_s(table: MutableMapping[int, int], keys: Sequence[int]) -> float:
    touch = getattr(table, "move_to_end", lambda key: None)
    began = time.process_time()
    for key in keys:
        table[key] = key
    for key in keys:
        table[key]
        touch(key)
    return len(keys) / (time.process_time() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
