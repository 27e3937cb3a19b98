"""Log probabilities of tokens that nobody computed (simulator.md section 8).

A token's own log probability is -1, -1.1 or -1.2 by its position; each alternative is 0.5 less than
the one before it. Alternatives are real tokens of the vocabulary, so that clients can look them up; tokens
that are no whole characters, and so have no name, are taken last.

An entry is made when it is looked at, and not kept: a large request may have millions of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.engine.lazy import LazySequence
from app.engine.outputs import TokenLogprob

STEP = 0.5
BROKEN = "\N{REPLACEMENT CHARACTER}"
STRIDE = 101
"""Distance in the vocabulary between a token and its alternatives."""


class Vocabulary(Protocol):
    """What is needed of a tokenizer here."""

    @property
    def vocab_size(self) -> int | None: ...

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]: ...

    def token_texts(self, ids: Sequence[int]) -> list[str]: ...


class Entries:
    """Makes the entries of `ids`, each with `alternatives` besides the token itself, or with `named` tokens.

    A token that ends inside a character is called "", and the one that completes it by the character,
    as in vLLM.
    """

    __slots__ = ("_alternatives", "_ids", "_named", "_names", "_size", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, ids: Sequence[int], alternatives: int, named: Sequence[int] = ()
    ) -> None:
        self._vocabulary, self._ids, self._alternatives = vocabulary, ids, alternatives
        self._size = vocabulary.vocab_size or max(ids, default=0) + 1
        self._named = named
        self._names: Sequence[str] = ()

    def entry(self, position: int) -> TokenLogprob:
        """The entry of the token at `position`."""
        self._names = self._names or self._vocabulary.pieces(self._ids, False)
        token_id, text, own = self._ids[position], self._names[position], own_logprob(position)
        top = [(token_id, text, own)]
        for rank, (other, name) in enumerate(self._others(token_id), 1):
            top.append((other, name, own - STEP * rank))
        return TokenLogprob(token_id, text, own, top)

    def _others(self, token_id: int) -> list[tuple[int, str]]:
        """The alternatives of a token with their names."""
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

    def prompt_entry(self, position: int) -> TokenLogprob | None:
        """The same for a token of a prompt: None for the first, as nothing comes before it."""
        return self.entry(position) if position else None


def own_logprob(position: int) -> float:
    """Natural-log probability of the token at `position` (0-based) in its reply."""
    return -1.0 - (position % 3) / 10


def reply_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], wanted: int, named: Sequence[int] = ()
) -> Sequence[TokenLogprob]:
    """One entry per token of a reply. Each is the likeliest one, and so among the `wanted` ones itself.

    With `named` tokens, those are the others.
    """
    return LazySequence(Entries(vocabulary, ids, wanted - 1, named).entry, range(len(ids)))


def prompt_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], alternatives: int
) -> Sequence[TokenLogprob | None]:
    """One entry per prompt token; the first is None."""
    return LazySequence(Entries(vocabulary, ids, alternatives).prompt_entry, range(len(ids)))
