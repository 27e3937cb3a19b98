"""Log probabilities of tokens that nobody computed (simulator.md section 8).

A token's own log probability is -1, -1.1 or -1.2 by its position; each alternative is 0.5 less than
the one before it. Alternatives are real tokens of the vocabulary, so that clients can look them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


def own_logprob(position: int) -> float:
    """Natural-log probability of the token at `position` (0-based) in its reply."""
    return -1.0 - (position % 3) / 10


def reply_logprobs(vocabulary: Vocabulary, ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """One entry per token of a reply, each with as many `alternatives` besides itself.

    A token that ends inside a character is called "", and the one that completes it by the character,
    as in vLLM.
    """
    size = vocabulary.vocab_size or max(ids, default=0) + 1
    entries = []
    for position, (token_id, text) in enumerate(zip(ids, vocabulary.pieces(ids, False), strict=True)):
        own = own_logprob(position)
        others = [(token_id + rank * STRIDE) % size for rank in range(1, alternatives + 1)]
        top = [(token_id, text, own)]
        for rank, (other, name) in enumerate(zip(others, vocabulary.token_texts(others), strict=True), 1):
            top.append((other, "" if BROKEN in name else name, own - STEP * rank))
        entries.append(TokenLogprob(token_id, text, own, top))
    return entries


def prompt_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], alternatives: int
) -> list[TokenLogprob | None]:
    """One entry per prompt token; the first is None, for nothing comes before it."""
    entries: list[TokenLogprob | None] = list(reply_logprobs(vocabulary, ids, alternatives))
    if entries:
        entries[0] = None
    return entries
