"""Replies of mode `random`: sample sentences, cut to an exact number of tokens or left whole.

Every reply begins with an English sentence. A reply with a limit from the client is cut at its drawn
length, and mixes prose in several scripts, emoji and code. A reply without a limit consists of whole
English sentences.

Every reply, encoded again, gives exactly the ids that were counted; benchmark clients do encode replies
again. The seam between two sentences and a cut inside a sentence could break this; both are checked on first
use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from app.base.clock.pause import Slices, pause_if_possible
from app.engine.core.request import LENGTH, STOP, EngineRequest, Reply
from app.engine.simulated.whole_sentences import WholeSentences
from app.text.base import Tokenizer, TokenizerError

SEAM = "Well."
"""Neighbour with which every sentence must join cleanly."""
TRIES = 24
"""Random draws for a sentence that fits, before a search through all."""
FIRST_USE_STEPS = 10
"""Work of encoding a sentence on first use, in steps of `Slices`; a long reply needs all sentences."""
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
    """Sentences that join cleanly, made on first use: at a reply's beginning, or behind a `space`."""

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
"""Returns the reply to a request, from the request's random stream; None: the next source decides."""
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
    """Sample sentences with a length of `length`, if given, or drawn; the end of text counts as a token."""

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
            count = request.min_tokens + (reply_length(room, request.limited, rng) if room > 0 else 0)
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
        """Returns whole sentences of about `tokens` tokens; None if they break a limit of `request`."""
        ids, texts = self._corpus.whole_sentences().compose(tokens, rng)
        if len(ids) < request.min_tokens or len(ids) + self._end >= request.max_tokens:
            return None
        return Reply(texts, ids, STOP)


def reply_length(most: int, limited: bool, rng: Random) -> int:
    """Draws a length of 1..`most` tokens, 1 only for a limit of one; `limited` if the client set `most`."""
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
    """Draws a length under a limit of `most` tokens (5.5); a limit too small for five buckets is used up."""
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
