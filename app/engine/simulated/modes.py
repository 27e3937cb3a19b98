"""Sources of replies, one per mode, for requests that nothing else decides.

Lengths follow simulator.md 5.4 and 5.5. Reply hooks of plugins are `ReplySource`s, too: the first source with
a reply wins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from random import Random

from app.engine.core.reply import LENGTH, STOP, Reply
from app.engine.core.request import EngineRequest
from app.engine.dataset import Datasets
from app.engine.simulated.corpus import Corpus
from app.text import Tokenizer

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
    """Sample sentences with a drawn number of tokens. `length`, where there is one, goes first.

    The end of text, where a reply has one, counts as a token.
    """

    def __init__(self, corpus: Corpus, ends: bool) -> None:
        """`ends`: the vocabulary has an end of text."""
        self._corpus = corpus
        self._end = int(ends)
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
        ids, texts = self._corpus.compose(max(1, count - self._end), rng)
        return Reply(texts, ids, STOP)


class EchoMode:
    """Echoes the text whole, whatever the limit; `length` marks a reached limit (5.2)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, request: EngineRequest, rng: Random) -> Reply:
        ids = self._tokenizer.encode(request.echo_text)
        reached = request.limited and len(ids) >= request.max_tokens
        return Reply(self._tokenizer.pieces(ids), ids, LENGTH if reached else STOP)


class DatasetMode:
    """Recorded replies (5.10); None without a dataset for the model, and when the dataset fails."""

    def __init__(self, datasets: Datasets, corpus: Corpus) -> None:
        self._datasets = datasets
        self._corpus = corpus

    def reply(self, request: EngineRequest, rng: Random) -> Reply | None:
        dataset = self._datasets.of(request.model)
        if dataset is None:
            return None
        most = request.max_tokens
        least = most if request.ignore_eos else max(1, request.min_tokens)
        found = dataset.reply(request.prompt_ids, request.turns, least, most, rng)
        if found is None:
            return None
        ids, texts = self._corpus.compose(found.missing, rng)
        return Reply([*found.texts, *texts], [*found.ids, *ids], LENGTH if found.reached_limit else STOP)


def reply_length(most: int, limited: bool, rng: Random) -> int:
    """Draws a length in tokens, 1..`most`; `limited` when the client itself set `most`.

    Only a limit of one makes a reply of one token: recorded streams always have a middle.
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
    """Draws a length under a limit of `most` tokens from the histogram of 5.5.

    A limit too small for five buckets is used up, as recorded exchanges of a real vLLM show; 5.5 would draw
    shorter lengths, too.
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
