"""Replies of mode `random`: sample sentences, cut to an exact number of tokens or left whole.

Every reply begins with an English sentence. A reply with a limit from the client is cut at its
drawn length, and mixes prose in several scripts, emoji and code. A reply without a limit consists
of whole English sentences.

Every reply, encoded again, gives exactly the ids that were counted; benchmark clients do encode
replies again. The seam between two sentences and a cut inside a sentence could break this; both are
checked on first use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from app.base.clock.pause import pause_if_possible
from app.engine.core.request import LENGTH, STOP, EngineRequest, Reply
from app.engine.simulated.phrases import Phrase, Phrases
from app.engine.simulated.whole_sentences import WholeSentences
from app.text.base import Tokenizer, TokenizerError

TRIES = 24
"""Random draws for a sentence that fits, before a search through all."""
PART_TOKENS = 16_384
"""Tokens of a long reply that are composed between two pauses: 2 to 4 ms."""


PROSE_FILE = "english.txt"
"""File of the sentences that begin replies."""


class SampleSentences(NamedTuple):
    """Sentences for replies. No sentence ends in white space."""

    prose: Sequence[str]
    """Whole English sentences."""
    others: Sequence[str]
    """Prose in other scripts, emoji and code."""


def sample_sentences() -> SampleSentences:
    """Reads the sample sentences; `\n` in the files is a line break."""
    prose: list[str] = []
    others: list[str] = []
    folder = Path(__file__).parent / "sentences"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
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
        """Raises TokenizerError when the tokenizer encodes no sentence losslessly."""
        candidates = [*sentences.prose, *sentences.others]
        self._openings = Phrases(tokenizer, sentences.prose, "")
        if not any(self._openings.all()):
            self._openings = Phrases(tokenizer, candidates, "")
        self._followers = Phrases(tokenizer, candidates, " ")
        self._prose_count = len(sentences.prose)
        self._whole_sentences: WholeSentences | None = None
        if not any(self._openings.all()) or not any(self._followers.all()):
            raise TokenizerError(
                f"The tokenizer {tokenizer.name!r} encodes none of the sample sentences losslessly."
            )

    def whole_sentences(self) -> WholeSentences:
        """Returns the composer of whole sentences. Made on first use: it encodes all sentences."""
        if self._whole_sentences is None:
            openings = list(self._openings.all())
            followers = list(self._followers.first(self._prose_count))
            if not followers:
                followers = list(self._followers.all())
            self._whole_sentences = WholeSentences(openings, followers)
        return self._whole_sentences

    def compose(self, count: int, rng: Random) -> tuple[list[int], list[str]]:
        """Returns ids and texts of exactly `count` tokens (>= 0)."""
        ids: list[int] = []
        texts: list[str] = []
        room, choices, pause_at = count, self._openings, PART_TOKENS
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
        # Like rng.choice, in a third of its time.
        draw, size = rng.getrandbits, choices.size
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


ReplySource = Callable[[EngineRequest, Random], Reply | None]
"""Returns the reply to a request, from the request's random stream; None:

the next source decides.
"""
LengthSource = Callable[[EngineRequest, Random], int | None]
"""Returns a reply's length in tokens (1 or more); None: the next source decides."""

MEAN_TOKENS, STD_DEV_TOKENS = 40, 20
"""Mean and standard deviation, in tokens, of replies without a client's limit."""
SHORT = 20
"""Tokens of room below which the bell curve would not fit, so lengths are uniform."""

CUMULATIVE = (0.2, 0.5, 0.7, 0.75, 0.85)
"""Cumulative probability of lengths in the five buckets; the rest uses up the limit."""
BUCKETS = 5
BUCKET_TOKENS = 20
FLEXIBLE = 3
"""Index of the bucket that takes the surplus of a large limit."""


class RandomMode:
    """Sample sentences with a length of `length`, if given, or drawn; the end of text counts as a
    token.
    """

    def __init__(self, corpus: Corpus, ends: bool) -> None:
        """`ends`: the vocabulary has an end of text."""
        self._corpus, self._end = corpus, int(ends)
        self.length: LengthSource | None = None

    def reply(self, request: EngineRequest, rng: Random) -> Reply:
        most = request.max_tokens
        wanted = None if self.length is None else self.length(request, rng)
        if request.ignore_eos:
            count = most
        elif wanted is not None:
            count = min(max(1, request.min_tokens) + self._end, most)
            count = max(count, min(wanted, most))
        else:
            count = reply_length(most, request.limited, rng)
        if count < request.min_tokens + self._end:  # must not end yet: goes on, and ends by chance
            room = most - request.min_tokens
            count = request.min_tokens + (
                reply_length(room, request.limited, rng) if room > 0 else 0
            )
        if count >= most:
            ids, texts = self._corpus.compose(count, rng)
            return Reply(texts, ids, LENGTH)
        tokens = max(1, count - self._end)
        if not request.limited and wanted is None:
            whole = self._whole_sentences(request, tokens, rng)
            if whole is not None:
                return whole
        ids, texts = self._corpus.compose(tokens, rng)
        return Reply(texts, ids, STOP)

    def _whole_sentences(self, request: EngineRequest, tokens: int, rng: Random) -> Reply | None:
        """Returns whole sentences of about `tokens` tokens; None if they break a limit of
        `request`.
        """
        ids, texts = self._corpus.whole_sentences().compose(tokens, rng)
        if len(ids) < request.min_tokens or len(ids) + self._end >= request.max_tokens:
            return None
        return Reply(texts, ids, STOP)


def reply_length(most: int, limited: bool, rng: Random) -> int:
    """Draws a length of 1..`most` tokens, 1 only for a limit of one; `limited` if the client set
    `most`.
    """
    if limited:
        drawn = limited_length(most, rng)
    elif most < SHORT:
        drawn = rng.randint(1, max(most, 1))
    else:  # a bell curve, cut to fit the context (5.4)
        curve = 0.0
        while not 1 <= curve <= most:
            curve = rng.gauss(MEAN_TOKENS, STD_DEV_TOKENS)
        drawn = int(curve + 0.5)
    return 2 if drawn < 2 <= most else drawn


def limited_length(most: int, rng: Random) -> int:
    """Draws a length under a limit of `most` tokens (5.5); a limit too small for five buckets is
    used up.
    """
    if most <= BUCKETS + 1:
        return most
    bucket = bisect_left(CUMULATIVE, rng.random())
    if bucket == BUCKETS:
        return most
    first, last = bucket_range(most, bucket)
    return first + below(last - first + 1, rng)


def below(size: int, rng: Random) -> int:
    """Like rng.randrange(size), in a third of its time."""
    bits = size.bit_length()
    number = rng.getrandbits(bits)
    while number >= size:
        number = rng.getrandbits(bits)
    return number


def bucket_range(most: int, bucket: int) -> tuple[int, int]:
    """First and last length, in tokens, of `bucket` (0..4) under a limit of `most` > 6 tokens."""
    if most <= BUCKETS * BUCKET_TOKENS + 1:
        size = (most - 1) / BUCKETS
        start, end = int(size * bucket) + 1, int(size * (bucket + 1))
    else:
        flexible = most - (BUCKETS - 1) * BUCKET_TOKENS
        stretch = flexible - BUCKET_TOKENS
        start = BUCKET_TOKENS * bucket + 1 + (stretch if bucket > FLEXIBLE else 0)
        end = BUCKET_TOKENS * (bucket + 1) + (stretch if bucket >= FLEXIBLE else 0)
    return start, min(end, most - 1)
