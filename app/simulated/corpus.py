"""What mode `random` says: our sample sentences, cut to exactly as many tokens as wanted.

Every reply, encoded again, gives exactly the ids that were counted (the clients that measure us do
encode it again). Two things could break that, and both are settled beforehand: the seam between two
sentences, checked for each sentence when the corpus is made, and a cut inside a sentence, checked
when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from random import Random

from app.tokenization import Tokenizer

SEAM = "Well."
"""A neighbour with which every sentence must join cleanly."""
TRIES = 24
"""Sentences drawn for one that fits before all are looked at."""


def sample_sentences() -> list[str]:
    """Our own sample sentences: English, some CJK, emoji and code; `\\n` in the files is a line break.

    None ends in white space, which tokenizers would join with the space before the next one.
    """
    folder = files("app.simulated") / "sentences"
    lines: list[str] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".txt"):
            lines += entry.read_text("utf-8").splitlines()
    return [line.replace("\\n", "\n").strip() for line in lines if line.strip()]


class Phrase:
    """A sentence as tokens: `ids`, and `texts`, what each of them adds."""

    __slots__ = ("_clean", "_lead", "_tokenizer", "ids", "texts")

    def __init__(self, ids: list[int], texts: list[str], lead: str, tokenizer: Tokenizer) -> None:
        self.ids, self.texts = ids, texts
        self._lead = lead
        self._tokenizer = tokenizer
        self._clean: dict[int, bool] = {len(ids): True}

    def ends_cleanly(self, count: int) -> bool:
        """True when the first `count` tokens, decoded and encoded again, are the same tokens."""
        clean = self._clean.get(count)
        if clean is None:
            head = self._tokenizer.encode(self._lead + "".join(self.texts[:count]))
            clean = head[-count:] == self.ids[:count] and "\ufffd" not in self.texts[count - 1]
            self._clean[count] = clean
        return clean


class Corpus:
    """Composes replies of a given number of tokens out of `sentences`."""

    def __init__(self, tokenizer: Tokenizer, sentences: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        candidates = list(sentences)
        self._openings = self._phrases(candidates, "")
        self._followers = self._phrases(candidates, " ")
        if not self._openings or not self._followers:
            raise ValueError(f"tokenizer {tokenizer.name!r} encodes none of the sample sentences losslessly")

    def _phrases(self, sentences: Sequence[str], space: str) -> list[Phrase]:
        """The sentences that join cleanly with their neighbours, as tokens."""
        encode = self._tokenizer.encode_many
        seam, follower = encode([SEAM, SEAM + " " + SEAM])
        tail = follower[len(seam) :]
        before = seam if space else []
        lead = SEAM if space else ""
        phrases = []
        for sentence, ids, joined in zip(
            sentences,
            encode([lead + space + sentence for sentence in sentences]),
            encode([lead + space + sentence + " " + SEAM for sentence in sentences]),
            strict=True,
        ):
            own = ids[len(before) :]
            if ids[: len(before)] != before or joined != ids + tail or not own:
                continue
            texts = self._tokenizer.pieces(ids)[len(before) :]
            if "".join(texts) == space + sentence:
                phrases.append(Phrase(own, texts, lead, self._tokenizer))
        return phrases

    def compose(self, count: int, rng: Random) -> tuple[list[int], list[str]]:
        """Ids and texts of a reply of exactly `count` tokens (>= 0)."""
        ids: list[int] = []
        texts: list[str] = []
        room, choices = count, self._openings
        while room > 0:
            phrase = self._fitting(room, choices, rng)
            if len(phrase.ids) <= room:
                ids += phrase.ids
                texts += phrase.texts
            else:
                ids += phrase.ids[:room]
                texts += phrase.texts[:room]
            room = count - len(ids)
            choices = self._followers
        return ids, texts

    def _fitting(self, room: int, choices: Sequence[Phrase], rng: Random) -> Phrase:
        """A phrase that has at most `room` tokens, or may be cut after so many."""
        # As rng.choice does it, in a third of its time.
        draw, size = rng.getrandbits, len(choices)
        bits = size.bit_length()
        for _ in range(TRIES):
            number = draw(bits)
            while number >= size:
                number = draw(bits)
            phrase = choices[number]
            if len(phrase.ids) <= room or phrase.ends_cleanly(room):
                return phrase
        for phrase in choices:
            if len(phrase.ids) <= room or phrase.ends_cleanly(room):
                return phrase
        return rng.choice(choices)
