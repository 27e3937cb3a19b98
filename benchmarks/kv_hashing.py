"""What the block hashes of a long prompt cost, against a CBOR library called for block after block."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import cbor2

from app.kvcache.hashing import Algorithm, BlockHasher
from benchmarks.options import parser
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.rounds import interleaved

ALGORITHM: Algorithm = "sha256_cbor"
LIBRARY, NEW, SEEN = "cbor2, block by block", "ours, prompt is new", "ours, prompt was seen before"
COLUMNS = ("how", "ms per prompt", "Mtokens/s", "longest stretch ms", "speed")


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt, once; a stretch is the time between two moments in which others may run."""

    prompt_ms: float
    stretch_ms: float


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    rng = Random(1)
    ids = [rng.randrange(options.vocabulary) for _ in range(options.tokens)]
    seen = _hasher(options, blocks=2 * options.tokens // options.block_size)
    expected = seen.hashes(ids)
    makers: dict[str, Callable[[], Callable[[], Iterator[list[bytes]]]]] = {
        LIBRARY: lambda: partial(_library, seen.none_hash, ids, options.block_size),
        NEW: lambda: partial(_parts, _with_table(options), ids),
        SEEN: lambda: partial(_parts, seen, ids),
    }
    _show(interleaved(makers, options.rounds, lambda how: _round(makers[how](), expected)), options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_hashing", __doc__, rounds=15)
    flags.add_argument("--tokens", type=int, default=100_000, help="tokens of the prompt")
    flags.add_argument("--block-size", type=int, default=16, help="tokens of a block")
    flags.add_argument("--vocabulary", type=int, default=128_000, help="token ids are below, all as likely")
    return flags.parse_args(argv)


def _hasher(options: argparse.Namespace, blocks: int) -> BlockHasher:
    return BlockHasher(ALGORITHM, options.block_size, "0", Random(0), memo_blocks=2 * blocks)


def _with_table(options: argparse.Namespace) -> BlockHasher:
    """A hasher that has seen the largest id, as any server's soon has, and not this prompt."""
    hasher = _hasher(options, blocks=options.tokens // options.block_size)
    hasher.hashes([options.vocabulary - 1] * options.block_size)
    return hasher


def _parts(hasher: BlockHasher, ids: Sequence[int]) -> Iterator[list[bytes]]:
    return hasher.chain.parts(hasher.none_hash, ids)


def _library(parent: bytes, ids: Sequence[int], size: int) -> Iterator[list[bytes]]:
    """The whole chain in one stretch."""
    hashes = []
    for start in range(0, len(ids) - size + 1, size):
        block = (parent, tuple(ids[start : start + size]), None)
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        hashes.append(parent)
    yield hashes


def _round(start: Callable[[], Iterator[list[bytes]]], expected: list[bytes]) -> Round:
    """RuntimeError when the hashes are wrong."""
    hashes: list[bytes] = []
    moments = [time.perf_counter()]
    for part in start():
        hashes += part
        moments.append(time.perf_counter())
    if hashes != expected:
        raise RuntimeError("the hashes differ")
    stretches = (later - earlier for earlier, later in zip(moments, moments[1:], strict=False))
    return Round((moments[-1] - moments[0]) * 1e3, max(stretches) * 1e3)


def _show(seen: dict[str, list[Round]], options: argparse.Namespace) -> None:
    middle = {how: medians(rounds) for how, rounds in seen.items()}
    rows = [
        (
            how,
            number(each.prompt_ms),
            number(options.tokens / each.prompt_ms / 1e3, 1),
            number(each.stretch_ms),
            ratio(middle[LIBRARY].prompt_ms, each.prompt_ms),
        )
        for how, each in middle.items()
    ]
    title = f"Block hashes of {options.tokens:,} tokens, {ALGORITHM}, blocks of {options.block_size}"
    show(title, COLUMNS, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
