"""Beams of a simulated beam search: a reply, and variants with falling probability.

A variant differs from the best reply in one token, which is an alternative of the token's log
probabilities. Beams share a prefix, as in most real searches, and no two beams have the same text.
The sum of the log probabilities never rises from one beam to the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from msgspec.structs import replace

from app.core.base.clock.pause import Pace
from app.core.engine.outputs import LazySequence, TokenLogprob
from app.core.engine.request import Reply
from app.core.engine.simulated.logprobs import STEP, Entries, own_logprob
from app.core.text.base import Tokenizer


class BeamVariants:
    """Makes variants of `best`, a reply of plain text."""

    def __init__(self, best: Reply, tokenizer: Tokenizer) -> None:
        self._best = best
        self._tokenizer = tokenizer
        self._eos = tokenizer.eos_token_id
        self._length = len(best.ids)
        if self._length and best.ids[-1] == self._eos:
            self._length -= 1

    def first(self, variants: int) -> list[Reply]:
        """Returns up to `variants` replies with distinct texts, the most likely first.

        There are fewer where the vocabulary has not enough alternatives.
        """
        replies: list[Reply] = []
        texts = {"".join(self._best.texts)}
        pause_if_due = Pace(time.monotonic)
        for position, rank, token_id in self._changes():
            if len(replies) >= variants:
                break
            pause_if_due()
            reply = self._variant(position, rank, token_id)
            text = "".join(reply.texts)
            if text not in texts:
                texts.add(text)
                replies.append(reply)
        return replies

    def _changes(self) -> Iterator[tuple[int, int, int]]:
        """Yields (position, rank, token id) of alternatives, by rank and from the last position on.

        Omits alternatives without a printable text, such as control characters and the end of text.
        """
        for rank in count(1):
            has_alternatives = False
            entries = Entries(self._tokenizer, self._best.ids, rank)
            for position in reversed(range(self._length)):
                top = entries.entry(position).top
                if len(top) <= rank:
                    continue
                has_alternatives = True
                token_id, text, _ = top[rank]
                if token_id != self._eos and text.strip() and text.isprintable():
                    yield position, rank, token_id
            if not has_alternatives:
                return

    def _variant(self, changed: int, rank: int, token_id: int) -> Reply:
        """Returns the reply with another token at position `changed`.

        `rank` (1 or more) counts the tokens that are likelier there.
        """
        ids = list(self._best.ids)
        ids[changed] = token_id
        logprobs = self._best.logprobs
        if logprobs is not None:
            best = logprobs

            def entry(position: int) -> TokenLogprob:
                if position != changed:
                    return best[position]
                text = self._tokenizer.token_texts([token_id])[0]
                logprob = own_logprob(position) - STEP * rank
                return TokenLogprob(token_id, text, logprob, best[position].top, rank=rank + 1)

            logprobs = LazySequence(entry, range(len(ids)))
        return replace(self._best, ids=ids, texts=self._tokenizer.pieces(ids), logprobs=logprobs)
