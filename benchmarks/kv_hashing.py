"""What the block hashes of a long prompt cost, against a CBOR library called for block after block."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from app.core.engine.kvcache.hashing import Algorithm, BlockHasher
from benchmarks.kv_naive import chain
from benchmarks.options import parser
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.rounds import interleaved

ALGORITHM: Algorithm = "sha256_cbor"
LIBRARY = "cbor2, block by block"
NEW = "ours, prompt is new"
SEEN = "ours, prompt was seen before"
COLUMNS = ("how", "ms per prompt", "Mtokens/s", "longest stretch ms", "speed")

Hashing: TypeAlias = Callable[[Sequence[int]], Iterator[Sequence[bytes]]]


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt, once; a stretch is the time between two moments in which others may run."""

    prompt_ms: float
    stretch_ms: float


class Prompts:
    """A prompt that nobody has seen at every call, of ids below `vocabulary`, all as likely."""

    def __init__(self, tokens: int, vocabulary: int) -> None:
        self._rng = Random(1)
        self._tokens = tokens
        self._vocabulary = vocabulary

    def __call__(self) -> list[int]:
        return [self._rng.randrange(self._vocabulary) for _ in range(self._tokens)]


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    blocks = options.tokens // options.block_size
    hasher = BlockHasher(ALGORITHM, options.block_size, "0", Random(0), memo_bytes=600 * blocks)
    library = Library(hasher.none_hash, options.block_size)
    prompts = Prompts(options.tokens, options.vocabulary)

    def ours(ids: Sequence[int]) -> Iterator[Sequence[bytes]]:
        return hasher.parts(ids)

    def measure(how: str) -> Round:
        ids = prompts()
        if how == SEEN:
            hasher.hashes(ids)
        return _round(library if how == LIBRARY else ours, ids, next(library(ids)))

    _show(interleaved((LIBRARY, NEW, SEEN), options.rounds, measure), options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("kv_hashing", __doc__, rounds=15)
    flags.add_argument("--tokens", type=int, default=100_000, help="tokens of the prompt")
    flags.add_argument("--block-size", type=int, default=16, help="tokens of a block")
    flags.add_argument(
        "--vocabulary", type=int, default=128_000, help="token ids are below, all as likely"
    )
    return flags.parse_args(argv)


class Library:
    """The chain as cbor2 and hashlib make it, in one stretch."""

    def __init__(self, none_hash: bytes, block_size: int) -> None:
        self._none_hash = none_hash
        self._size = block_size

    def __call__(self, ids: Sequence[int]) -> Iterator[Sequence[bytes]]:
        yield list(chain(ids, self._none_hash, self._size))


def _round(hashing: Hashing, ids: Sequence[int], expected: Sequence[bytes]) -> Round:
    """RuntimeError when the hashes are wrong."""
    hashes: list[bytes] = []
    moments = [time.perf_counter()]
    for part in hashing(ids):
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
            number(round_.prompt_ms),
            number(options.tokens / round_.prompt_ms / 1e3, 1),
            number(round_.stretch_ms),
            ratio(middle[LIBRARY].prompt_ms, round_.prompt_ms),
        )
        for how, round_ in middle.items()
    ]
    title = (
        f"Block hashes of {options.tokens:,} tokens, {ALGORITHM}, blocks of {options.block_size}"
    )
    show(title, COLUMNS, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
