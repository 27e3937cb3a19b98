"""Sample sentences as tokens, checked for joining and cutting without a change of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.core.base.clock.pause import Slices
from app.core.text.base import Tokenizer

SEAM = "Well."
"""Neighbour with which every sentence must join cleanly."""
FIRST_USE_STEPS = 10
"""Work of encoding a sentence on first use, in steps of `Slices`.

A long reply needs all sentences.
"""


class Phrase:
    """A sentence as tokens: `ids`, and in `texts` the text that each token adds."""

    __slots__ = ("_clean", "_lead", "_tokenizer", "ids", "texts")

    def __init__(self, ids: list[int], texts: list[str], lead: str, tokenizer: Tokenizer) -> None:
        self.ids = ids
        self.texts = texts
        self._lead = lead
        self._tokenizer = tokenizer
        self._clean: dict[int, bool] = {len(ids): True}

    def ends_cleanly(self, count: int) -> bool:
        """Returns whether the first `count` tokens stay the same when their text is encoded."""
        clean = self._clean.get(count)
        if clean is None:
            head = self._tokenizer.encode(self._lead + "".join(self.texts[:count]))
            clean = head[-count:] == self.ids[:count] and "\ufffd" not in self.texts[count - 1]
            self._clean[count] = clean
        return clean


class Phrases(dict[int, Phrase | None]):
    """Sentences that join cleanly, at a reply's beginning or after a `space`; made on first use."""

    def __init__(self, tokenizer: Tokenizer, sentences: Sequence[str], space: str) -> None:
        self._tokenizer = tokenizer
        self._sentences = sentences
        self._space = space
        seam, follower = tokenizer.encode_many([SEAM, SEAM + " " + SEAM])
        self._tail = follower[len(seam) :]
        self._lead = SEAM if space else ""
        self._lead_ids = seam if space else []
        self.size = len(sentences)
        self._slices = Slices()
        if tokenizer.vocab_size is None:
            self._make(range(len(sentences)))

    def __missing__(self, number: int) -> Phrase | None:
        self._make((number,))
        self._slices.spend(FIRST_USE_STEPS)
        return self[number]

    def all(self) -> Iterator[Phrase]:
        """Yields all phrases that join cleanly."""
        return self.first(self.size)

    def first(self, count: int) -> Iterator[Phrase]:
        """Yields the phrases of the first `count` sentences that join cleanly."""
        for number in range(count):
            phrase = self[number]
            if phrase is not None:
                yield phrase

    def _make(self, numbers: Iterable[int]) -> None:
        encode = self._tokenizer.encode_many
        prefix = self._lead + self._space
        lead_tokens = len(self._lead_ids)
        sentences = [self._sentences[number] for number in numbers]
        alone = encode([prefix + sentence for sentence in sentences])
        joined = encode([prefix + sentence + " " + SEAM for sentence in sentences])
        for number, sentence, ids, longer in zip(numbers, sentences, alone, joined, strict=True):
            self[number] = None
            sentence_ids = ids[lead_tokens:]
            joins = ids[:lead_tokens] == self._lead_ids and longer == ids + self._tail
            if sentence_ids and joins:
                texts = self._tokenizer.pieces(ids)[lead_tokens:]
                if "".join(texts) == self._space + sentence:
                    self[number] = Phrase(sentence_ids, texts, self._lead, self._tokenizer)
