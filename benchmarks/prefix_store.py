"""What a prompt costs to encode of which all but the end was asked for before, with the prefix store."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from app.kvindex.prefix_store import PrefixStore
from app.tokenization import LocalTokenizer, default_tokenizer
from app.tokenization.loading import EMBEDDED
from benchmarks.options import parser
from benchmarks.report import medians, number, ratio, show, show_machine
from benchmarks.rounds import interleaved

WHOLE = "whole text"
NEW, SECOND, SHARED = "store, new prompt", "store, second with its beginning", "store, later ones"
COLUMNS = ("how", "ms per prompt", "tokens reused", "speed")
WORDS = EMBEDDED / "words.txt"


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt, once."""

    prompt_ms: float
    reused_share: float


class Prompts:
    """Prompts of as many tokens; the beginning is one that nobody has seen, or one that is shared."""

    def __init__(self, tokenizer: LocalTokenizer, tokens: int, own_tokens: int) -> None:
        self._rng = Random(1)
        self._tokenizer = tokenizer
        self._words = WORDS.read_text("utf-8").split()
        self._tokens, self._own_tokens = tokens, own_tokens

    def text(self, tokens: int) -> str:
        """So many tokens of common words, with a number now and then."""
        words = (
            self._rng.choice(self._words) if self._rng.random() < 0.9 else str(self._rng.randrange(10**6))
            for _ in range(tokens)
        )
        return self._tokenizer.decode(self._tokenizer.encode(" ".join(words))[:tokens])

    def beginning(self) -> str:
        return self.text(self._tokens - self._own_tokens)

    def end(self) -> str:
        return " " + self.text(self._own_tokens)


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    options = _options(argv)
    show_machine()
    tokenizer = default_tokenizer()
    prompts = Prompts(tokenizer, options.tokens, options.own_tokens)
    store, shared = PrefixStore(), prompts.beginning()
    for _ in range(2):
        store.encode(tokenizer, shared + prompts.end())

    def measure(how: str) -> Round:
        beginning = shared if how in (WHOLE, SHARED) else prompts.beginning()
        if how == SECOND:
            store.encode(tokenizer, beginning + prompts.end())
        text = beginning + prompts.end()
        encode = tokenizer.encode if how == WHOLE else lambda text: store.encode(tokenizer, text)
        return _round(encode, text, tokenizer.encode(text), store)

    _show(interleaved((WHOLE, NEW, SECOND, SHARED), options.rounds, measure), options)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    flags = parser("prefix_store", __doc__, rounds=25)
    flags.add_argument("--tokens", type=int, default=8_000, help="tokens of the prompt")
    flags.add_argument("--own-tokens", type=int, default=200, help="of these, at the end and new every time")
    return flags.parse_args(argv)


def _round(encode: Callable[[str], list[int]], text: str, expected: list[int], store: PrefixStore) -> Round:
    """RuntimeError when the ids are not those of the whole text."""
    before = store.counts.bytes_reused
    begun_s = time.perf_counter()
    ids = encode(text)
    took_s = time.perf_counter() - begun_s
    if ids != expected:
        raise RuntimeError("the ids differ")
    return Round(took_s * 1e3, (store.counts.bytes_reused - before) / len(text.encode()))


def _show(seen: dict[str, list[Round]], options: argparse.Namespace) -> None:
    middle = {how: medians(rounds) for how, rounds in seen.items()}
    rows = [
        (
            how,
            number(each.prompt_ms),
            number(each.reused_share * 100, 0, " %"),
            ratio(middle[WHOLE].prompt_ms, each.prompt_ms),
        )
        for how, each in middle.items()
    ]
    title = f"Encoding prompts of {options.tokens:,} tokens, {options.own_tokens:,} of them new every time"
    show(title, COLUMNS, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
