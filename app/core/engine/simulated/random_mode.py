"""Replies of mode `random`: their lengths, and sample sentences of that length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from random import Random

from app.core.engine.request import LENGTH, STOP, EngineRequest, Reply
from app.core.engine.simulated.corpus import Corpus

LengthSource = Callable[[EngineRequest, Random], int | None]
"""Returns a reply's length in tokens (1 or more); None: the next source decides."""

MEAN_TOKENS = 40
STD_DEV_TOKENS = 20
"""Mean and standard deviation, in tokens, of replies without a client's limit."""
SHORT = 20
"""Tokens of room below which the bell curve would not fit, so lengths are uniform."""

CUMULATIVE = (0.2, 0.5, 0.7, 0.75, 0.85)
"""Cumulative probability of lengths in the five buckets; other replies use up the limit."""
BUCKETS = 5
BUCKET_TOKENS = 20
FLEXIBLE = 3
"""Index of the bucket that takes the surplus of a large limit."""


class RandomMode:
    """Makes replies of sample sentences; an end of text counts as a token."""

    def __init__(self, corpus: Corpus, ends: bool) -> None:
        """`ends`: the vocabulary has an end of text."""
        self._corpus = corpus
        self._end_tokens = int(ends)
        self.length: LengthSource | None = None
        """Decides lengths before they are drawn."""

    def reply(self, request: EngineRequest, rng: Random) -> Reply:
        """Returns the reply to a request."""
        max_tokens = request.max_tokens
        draw_length = limited_length
        if request.sampling.max_tokens is None:
            draw_length = free_length
        wanted = None if self.length is None else self.length(request, rng)
        if request.sampling.ignore_eos:
            count = max_tokens
        elif wanted is not None:
            count = min(max(1, request.sampling.min_tokens) + self._end_tokens, max_tokens)
            count = max(count, min(wanted, max_tokens))
        else:
            count = draw_length(max_tokens, rng)
        if count < request.sampling.min_tokens + self._end_tokens:
            # The reply must not end yet: it goes on, and ends by chance.
            room = max_tokens - request.sampling.min_tokens
            count = request.sampling.min_tokens
            if room > 0:
                count += draw_length(room, rng)
        if count >= max_tokens:
            ids, texts = self._corpus.compose(count, rng)
            return Reply(texts, ids, LENGTH)
        tokens = max(1, count - self._end_tokens)
        if request.sampling.max_tokens is None and wanted is None:
            whole = self._whole_sentences(request, tokens, rng)
            if whole is not None:
                return whole
        ids, texts = self._corpus.compose(tokens, rng)
        return Reply(texts, ids, STOP)

    def _whole_sentences(self, request: EngineRequest, tokens: int, rng: Random) -> Reply | None:
        """Returns whole sentences of about `tokens` tokens.

        Returns None if they break a limit of `request`.
        """
        ids, texts = self._corpus.whole_sentences.compose(tokens, rng)
        if (
            len(ids) < request.sampling.min_tokens
            or len(ids) + self._end_tokens >= request.max_tokens
        ):
            return None
        return Reply(texts, ids, STOP)


def free_length(max_tokens: int, rng: Random) -> int:
    """Draws a length in the room of the context: 2 to `max_tokens` tokens, 1 only if that is 1."""
    if max_tokens < SHORT:
        drawn = rng.randint(1, max(max_tokens, 1))
    else:  # a bell curve, cut to fit the context
        curve = 0.0
        while not 1 <= curve <= max_tokens:
            curve = rng.gauss(MEAN_TOKENS, STD_DEV_TOKENS)
        drawn = int(curve + 0.5)
    return 2 if drawn < 2 <= max_tokens else drawn


def limited_length(max_tokens: int, rng: Random) -> int:
    """Draws a length under a client's limit, or returns a limit too small for five buckets."""
    if max_tokens <= BUCKETS + 1:
        return max_tokens
    bucket = bisect_left(CUMULATIVE, rng.random())
    if bucket == BUCKETS:
        return max_tokens
    first, last = bucket_range(max_tokens, bucket)
    return max(2, first + below(last - first + 1, rng))


def below(size: int, rng: Random) -> int:
    """Does the same as rng.randrange(size), in a third of its time."""
    bits = size.bit_length()
    number = rng.getrandbits(bits)
    while number >= size:
        number = rng.getrandbits(bits)
    return number


def bucket_range(max_tokens: int, bucket: int) -> tuple[int, int]:
    """Returns first and last length of `bucket` (0 to 4) under a limit of more than 6 tokens."""
    if max_tokens <= BUCKETS * BUCKET_TOKENS + 1:
        size = (max_tokens - 1) / BUCKETS
        start = int(size * bucket) + 1
        end = int(size * (bucket + 1))
    else:
        stretch = max_tokens - BUCKETS * BUCKET_TOKENS
        start = BUCKET_TOKENS * bucket + 1
        end = BUCKET_TOKENS * (bucket + 1)
        if bucket > FLEXIBLE:
            start += stretch
        if bucket >= FLEXIBLE:
            end += stretch
    return start, min(end, max_tokens - 1)
