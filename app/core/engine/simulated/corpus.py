"""Replies of mode `random`: sample sentences, cut to an exact number of tokens or left whole.

Every reply begins with an English sentence. A reply with a limit from the client is cut at its
drawn length, and mixes prose in several scripts, emoji and code. A reply without a limit consists
of whole English sentences.

Every reply, encoded again, gives exactly the ids that were counted; benchmark clients do encode
replies again. The seam between two sentences and a cut inside a sentence could break this; both are
checked on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.simulated.phrases import Phrase, Phrases
from app.core.engine.simulated.whole_sentences import WholeSentences
from app.core.text.base import Tokenizer, TokenizerError

TRIES = 24
"""Random draws for a sentence that fits, before a search through all."""
PART_TOKENS = 16_384
"""Tokens of a long reply that are composed between two pauses: 2 to 4 ms."""
PROSE_FILE = "english.txt"
"""File of the sentences that begin replies."""
_name = attrgetter("name")


class SampleSentences(NamedTuple):
    """Sentences for replies. No sentence ends in white space."""

    prose: Sequence[str]
    """Whole English sentences."""
    others: Sequence[str]
    """Prose in other scripts, emoji and code."""


def sample_sentences() -> SampleSentences:
    r"""Reads the sample sentences; `\n` in the files is a line break."""
    prose: list[str] = []
    others: list[str] = []
    folder = Path(__file__).parent / "sentences"
    for entry in sorted(folder.iterdir(), key=_name):
        if not entry.name.endswith(".txt"):
            continue
        lines = entry.read_text("utf-8").splitlines()
        sentences = [line.replace("\\n", "\n").strip() for line in lines if line.strip()]
        if entry.name == PROSE_FILE:
            prose += sentences
        else:
            others += sentences
    return SampleSentences(prose, others)


class Corpus:
    """Composes replies out of sample sentences."""

    def __init__(self, tokenizer: Tokenizer, sentences: SampleSentences) -> None:
        """Prepares the sentences, with the embedded tokenizer on first use.

        Raises:
            TokenizerError: The tokenizer encodes no sentence losslessly.
        """
        self._tokenizer = tokenizer
        self._prose = sentences.prose
        self._candidates = [*sentences.prose, *sentences.others]
        if tokenizer.is_embedded:
            return
        if not any(self._openings.all()) or not any(self._followers.all()):
            raise TokenizerError(
                f"The tokenizer {tokenizer.name!r} cannot encode any of the sample sentences "
                "losslessly."
            )

    @cached_property
    def _openings(self) -> Phrases:
        openings = Phrases(self._tokenizer, self._prose, "")
        if not any(openings.all()):
            openings = Phrases(self._tokenizer, self._candidates, "")
        return openings

    @cached_property
    def _followers(self) -> Phrases:
        return Phrases(self._tokenizer, self._candidates, " ")

    @cached_property
    def whole_sentences(self) -> WholeSentences:
        """The composer of whole sentences. Made on first use: it encodes all sentences."""
        openings = list(self._openings.all())
        followers = list(self._followers.first(len(self._prose)))
        if not followers:
            followers = list(self._followers.all())
        return WholeSentences(openings, followers)

    def compose(self, count: int, rng: Random) -> tuple[list[int], list[str]]:
        """Returns ids and texts of exactly `count` tokens (>= 0)."""
        ids: list[int] = []
        texts: list[str] = []
        room = count
        choices = self._openings
        pause_at = PART_TOKENS
        while room > 0:
            phrase = self._fitting(room, choices, rng)
            ids += phrase.ids[:room]
            texts += phrase.texts[:room]
            room = count - len(ids)
            choices = self._followers
            if len(ids) >= pause_at:
                pause_if_possible()
                pause_at += PART_TOKENS
        return ids, texts

    def _fitting(self, room: int, choices: Phrases, rng: Random) -> Phrase:
        """Returns a phrase of at most `room` tokens, else one that may be cut there, else any."""
        # The same as rng.choice, in a third of its time.
        draw = rng.getrandbits
        size = choices.size
        bits = size.bit_length()
        for _ in range(TRIES):
            number = draw(bits)
            while number >= size:
                number = draw(bits)
            phrase = choices[number]
            if phrase is not None and (len(phrase.ids) <= room or phrase.ends_cleanly(room)):
                return phrase
        for phrase in choices.all():
            if len(phrase.ids) <= room or phrase.ends_cleanly(room):
                return phrase
        return rng.choice(list(choices.all()))
