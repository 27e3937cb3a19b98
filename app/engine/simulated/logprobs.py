"""Made-up log probabilities of simulated replies.

A token's own log probability is -1, -1.1 or -1.2 by its position; each alternative is 0.5 less than
the one before it. Alternatives are real tokens of the vocabulary, so clients can look them up.
Tokens that are no whole characters have no name and come last.

An entry is made on access and not kept: a large request may have millions.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.core.outputs import TokenLogprob
from app.text.base import Tokenizer

STEP = 0.5
BROKEN = "\N{REPLACEMENT CHARACTER}"
STRIDE = 101
"""Distance in the vocabulary between a token and its alternatives."""


class Entries:
    """Makes entries of `ids`, with alternatives or `named` ones.

    A character's last token has its name.
    """

    __slots__ = ("_alternatives", "_ids", "_named", "_names", "_size", "_vocabulary")

    def __init__(
        self,
        vocabulary: Tokenizer,
        ids: Sequence[int],
        alternatives: int,
        named: Sequence[int] = (),
    ) -> None:
        self._vocabulary, self._ids, self._alternatives = vocabulary, ids, alternatives
        self._size = vocabulary.vocab_size or max(ids, default=0) + 1
        self._named = named
        self._names: Sequence[str] = ()

    def entry(self, position: int) -> TokenLogprob:
        self._names = self._names or self._vocabulary.pieces(self._ids, False)
        token_id, text, own = self._ids[position], self._names[position], own_logprob(position)
        top = [(token_id, text, own)]
        for rank, (other, name) in enumerate(self._others(token_id), 1):
            top.append((other, name, own - STEP * rank))
        return TokenLogprob(token_id, text, own, top)

    def _others(self, token_id: int) -> list[tuple[int, str]]:
        if self._named:
            others = [other for other in self._named if other != token_id]
            return list(zip(others, self._texts(others), strict=True))
        wanted, found = self._alternatives, list[tuple[int, str]]()
        unnamed: list[tuple[int, str]] = []
        for first in range(1, self._size, max(wanted, 1)):
            if len(found) >= wanted:
                break
            ranks = range(first, min(first + wanted, self._size))
            others = [(token_id + rank * STRIDE) % self._size for rank in ranks]
            for each in zip(others, self._texts(others), strict=True):
                (found if each[1] else unnamed).append(each)
        return [*found, *unnamed][:wanted]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        return ["" if BROKEN in name else name for name in self._vocabulary.token_texts(ids)]


def own_logprob(position: int) -> float:
    """Natural-log probability of the token at `position` (0-based) in its reply."""
    return -1.0 - (position % 3) / 10
