"""Replies without a client's limit: whole English sentences whose tokens add up to a drawn length.

A reply without a limit ends with a sentence, as a real model's reply does. The reply keeps the
drawn length wherever sentences of the corpus add up to that length. With the sample sentences and
the embedded tokenizer, these are all lengths from 9 tokens on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from app.core.engine.simulated.phrases import Phrase

PhrasesByLength = Mapping[int, Sequence[Phrase]]
"""Maps a number of tokens to all phrases of that length."""

MAX_DRAWS = 24
"""Random draws of a sentence that leaves room for others, before a search through all lengths."""


def by_length(phrases: Sequence[Phrase]) -> PhrasesByLength:
    """Groups `phrases` by their numbers of tokens."""
    groups: dict[int, list[Phrase]] = {}
    for phrase in phrases:
        groups.setdefault(len(phrase.ids), []).append(phrase)
    return groups


def reachable_sums(lengths: Sequence[int]) -> list[bool]:
    """Returns whether each total from 0 to twice the longest length is a sum of `lengths`.

    A length may be used repeatedly, and 0 is the sum of no lengths.
    """
    sums = [True]
    for total in range(1, 2 * max(lengths) + 1):
        sums.append(any(length <= total and sums[total - length] for length in lengths))
    return sums


class WholeSentences:
    """Composes texts of whole sentences. `openings` and `followers` must not be empty."""

    def __init__(self, openings: Sequence[Phrase], followers: Sequence[Phrase]) -> None:
        """`openings` begin a text; `followers` begin with the space behind another sentence."""
        self._openings = openings
        self._followers = followers
        self._openings_by_length = by_length(openings)
        self._followers_by_length = by_length(followers)
        self._sums = reachable_sums(list(self._followers_by_length))

    def compose(self, tokens: int, rng: Random) -> tuple[list[int], list[str]]:
        """Returns ids and texts of one or more sentences.

        The text has `tokens` tokens where sentences add up to that number, else about as many.
        """
        phrase = self._draw(tokens, self._openings, self._openings_by_length, rng)
        if phrase is None:
            lengths = self._openings_by_length
            nearest = min(lengths, key=lambda length: (abs(length - tokens), length))
            phrase = rng.choice(lengths[nearest])
        ids: list[int] = []
        texts: list[str] = []
        while phrase is not None:
            ids += phrase.ids
            texts += phrase.texts
            room = tokens - len(ids)
            phrase = self._draw(room, self._followers, self._followers_by_length, rng)
        return ids, texts

    def _draw(
        self, room: int, phrases: Sequence[Phrase], lengths: PhrasesByLength, rng: Random
    ) -> Phrase | None:
        """Returns a phrase behind which sentences can fill `room`; None without such a phrase."""
        if room <= 0:
            return None
        for _ in range(MAX_DRAWS):
            phrase = rng.choice(phrases)
            if self._can_fill(room - len(phrase.ids)):
                return phrase
        fitting = [length for length in lengths if self._can_fill(room - length)]
        if not fitting:
            return None
        return rng.choice(lengths[rng.choice(fitting)])

    def _can_fill(self, room: int) -> bool:
        """Returns whether followers fill `room`; assumed for a room above the known sums."""
        return room >= 0 and (room >= len(self._sums) or self._sums[room])
