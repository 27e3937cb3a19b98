"""Sample sentences as tokens, checked for joining and cutting without a change of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from app.base.clock.pause import Slices
from app.text.base import Tokenizer

SEAM = "Well."
"""Neighbour with which every sentence must join cleanly."""
FIRST_USE_STEPS = 10
"""Work of encoding a sentence on first use, in steps of `Slices`; a long reply needs all sentences.
"""


class Phrase:
    """A sentence as tokens: `ids`, and in `texts` the text that each token adds."""

    __slots__ = ("_clean", "_lead", "_tokenizer", "ids", "texts")

    def __init__(self, ids: list[int], texts: list[str], lead: str, tokenizer: Tokenizer) -> None:
        self.ids, self.texts, self._lead, self._tokenizer = ids, texts, lead, tokenizer
        self._clean: dict[int, bool] = {len(ids): True}

    def ends_cleanly(self, count: int) -> bool:
        """True when the first `count` tokens, decoded and encoded again, are the same tokens."""
        clean = self._clean.get(count)
        if clean is None:
            head = self._tokenizer.encode(self._lead + "".join(self.texts[:count]))
            clean = head[-count:] == self.ids[:count] and "\ufffd" not in self.texts[count - 1]
            self._clean[count] = clean
        return clean


class Phrases(dict[int, Phrase | None]):
    """Sentences that join cleanly, made on first use:

    at a reply's beginning, or behind a `space`.
    """

    def __init__(self, tokenizer: Tokenizer, sentences: Sequence[str], space: str) -> None:
        self._tokenizer, self._sentences, self._space = tokenizer, sentences, space
        seam, follower = tokenizer.encode_many([SEAM, SEAM + " " + SEAM])
        self._tail = follower[len(seam) :]
        self._before, self._lead = (seam, SEAM) if space else ([], "")
        self.size = len(sentences)
        self._slices = Slices()
        if tokenizer.vocab_size is None:
            self._make(range(len(sentences)))

    def __missing__(self, number: int) -> Phrase | None:
        self._make((number,))
        self._slices.spend(FIRST_USE_STEPS)
        return self[number]

    def all(self) -> Iterator[Phrase]:
        return self.first(self.size)

    def first(self, count: int) -> Iterator[Phrase]:
        """Yields the phrases of the first `count` sentences that join cleanly."""
        return (phrase for number in range(count) if (phrase := self[number]) is not None)

    def _make(self, numbers: Iterable[int]) -> None:
        encode, before = self._tokenizer.encode_many, self._lead + self._space
        sentences = [self._sentences[number] for number in numbers]
        alone = encode([before + sentence for sentence in sentences])
        joined = encode([before + sentence + " " + SEAM for sentence in sentences])
        for number, sentence, ids, longer in zip(numbers, sentences, alone, joined, strict=True):
            self[number] = None
            own = ids[len(self._before) :]
            if own and ids[: len(self._before)] == self._before and longer == ids + self._tail:
                texts = self._tokenizer.pieces(ids)[len(self._before) :]
                if "".join(texts) == self._space + sentence:
                    self[number] = Phrase(own, texts, self._lead, self._tokenizer)
