"""Log probabilities of tokens that nobody computed (simulator.md section 8).

A token's own log probability is -1, -1.1 or -1.2 by its position; each alternative is 0.5 less than
the one before it. Alternatives are real tokens of the vocabulary, so that clients can look them up.

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
    """Makes the entries of `ids`, each with as many `alternatives` besides the token itself.

    A token that ends inside a character is called "", and the one that completes it by the character,
    as in vLLM.
    """

    __slots__ = ("_alternatives", "_ids", "_names", "_size", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, ids: Sequence[int], alternatives: int) -> None:
        self._vocabulary, self._ids, self._alternatives = vocabulary, ids, alternatives
        self._size = vocabulary.vocab_size or max(ids, default=0) + 1
        self._names: Sequence[str] = ()

    def entry(self, position: int) -> TokenLogprob:
        """The entry of the token at `position`."""
        self._names = self._names or self._vocabulary.pieces(self._ids, False)
        token_id, text, own = self._ids[position], self._names[position], own_logprob(position)
        others = [(token_id + rank * STRIDE) % self._size for rank in range(1, self._alternatives + 1)]
        top = [(token_id, text, own)]
        for rank, (other, name) in enumerate(
            zip(others, self._vocabulary.token_texts(others), strict=True), 1
        ):
            top.append((other, "" if BROKEN in name else name, own - STEP * rank))
        return TokenLogprob(token_id, text, own, top)

    def prompt_entry(self, position: int) -> TokenLogprob | None:
        """The same for a token of a prompt: None for the first, as nothing comes before it."""
        return self.entry(position) if position else None


def own_logprob(position: int) -> float:
    """Natural-log probability of the token at `position` (0-based) in its reply."""
    return -1.0 - (position % 3) / 10


def reply_logprobs(vocabulary: Vocabulary, ids: Sequence[int], wanted: int) -> Sequence[TokenLogprob]:
    """One entry per token of a reply. Each is the likeliest one, and so among the `wanted` ones itself."""
    return LazySequence(Entries(vocabulary, ids, wanted - 1).entry, range(len(ids)))


def prompt_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], alternatives: int
) -> Sequence[TokenLogprob | None]:
    """One entry per prompt token; the first is None."""
    return LazySequence(Entries(vocabulary, ids, alternatives).prompt_entry, range(len(ids)))
