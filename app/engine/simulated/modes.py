"""Replies of mode `random`, for requests that nothing else decides.

Lengths follow simulator.md 5.4 and 5.5. Reply hooks of plugins are `ReplySource`s, too: the first source with
a reply wins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from random import Random

from app.engine.core.request import LENGTH, STOP, EngineRequest, Reply
from app.engine.simulated.corpus import Corpus

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
        reached = count >= most
        ids, texts = self._corpus.compose(count if reached else max(1, count - self._end), rng)
        return Reply(texts, ids, LENGTH if reached else STOP)


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
