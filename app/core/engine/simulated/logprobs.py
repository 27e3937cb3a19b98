"""Made-up log probabilities of simulated replies.

A token's own log probability is -1, -1.1 or -1.2 by its position; each alternative is 0.5 less than
the one before it. Alternatives are real tokens of the vocabulary, so clients can look them up.
Tokens that are not whole characters have no name and come last.

An entry is made on access and not stored: a large request may have millions.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.engine.outputs import LazySequence, TokenLogprob
from app.core.engine.request import EngineRequest, Reply
from app.core.text.base import Tokenizer

STEP = 0.5
BROKEN = "\N{REPLACEMENT CHARACTER}"
STRIDE = 101
"""Distance in the vocabulary between a token and its alternatives."""


class Logprobs:
    """Adds log probabilities to replies."""

    def __init__(self, vocabulary: Tokenizer) -> None:
        self._vocabulary = vocabulary

    def add(self, reply: Reply, request: EngineRequest) -> None:
        """Adds the log probabilities of the tokens, and of the prompt, as far as requested."""
        sampling = request.sampling
        if sampling.logprobs is not None:  # the number counts the token itself
            alternatives = sampling.logprobs - 1
            entries = Entries(self._vocabulary, reply.ids, alternatives, sampling.logprob_token_ids)
            reply.logprobs = LazySequence(entries.entry, range(len(reply.ids)))
        if sampling.prompt_logprobs is not None:
            entry = Entries(self._vocabulary, request.prompt_ids, sampling.prompt_logprobs).entry

            def prompt_entry(position: int) -> TokenLogprob | None:
                return entry(position) if position else None

            reply.prompt_logprobs = LazySequence(prompt_entry, range(len(request.prompt_ids)))


class Entries:
    """Makes entries of `ids`, with a number of alternatives, or with the `named` ones.

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
        self._vocabulary = vocabulary
        self._ids = ids
        self._alternatives = alternatives
        self._size = vocabulary.vocab_size or max(ids, default=0) + 1
        self._named = named
        self._names: Sequence[str] = ()

    def entry(self, position: int) -> TokenLogprob:
        """Returns the log probabilities of the token at `position`."""
        self._names = self._names or self._vocabulary.pieces(self._ids, False)
        token_id = self._ids[position]
        text = self._names[position]
        logprob = own_logprob(position)
        top = [(token_id, text, logprob)]
        for rank, (other, name) in enumerate(self._others(token_id), 1):
            top.append((other, name, logprob - STEP * rank))
        return TokenLogprob(token_id, text, logprob, top)

    def _others(self, token_id: int) -> list[tuple[int, str]]:
        """Returns ids and texts of the alternatives to a token."""
        if self._alternatives <= 0 and not self._named:
            return []
        if self._named:
            others = [other for other in self._named if other != token_id]
            return list(zip(others, self._texts(others), strict=True))
        count = self._alternatives
        whole: list[tuple[int, str]] = []
        unnamed: list[tuple[int, str]] = []
        for first in range(1, self._size, max(count, 1)):
            if len(whole) >= count:
                break
            ranks = range(first, min(first + count, self._size))
            others = [(token_id + rank * STRIDE) % self._size for rank in ranks]
            for other, text in zip(others, self._texts(others), strict=True):
                if text:
                    whole.append((other, text))
                else:
                    unnamed.append((other, text))
        return [*whole, *unnamed][:count]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        return ["" if BROKEN in name else name for name in self._vocabulary.token_texts(ids)]


def own_logprob(position: int) -> float:
    """Returns the natural-log probability of the token at `position` (from 0) in its reply."""
    return -1.0 - (position % 3) / 10
