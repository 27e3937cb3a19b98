"""How many tokens a random reply has (simulator.md 5.4 and 5.5)."""

from __future__ import annotations

from random import Random

MEAN_TOKENS, STD_DEV_TOKENS = 40, 20
"""Length of replies whose client set no limit."""
SHORT = 20
"""Below this much room the bell curve would not fit, so lengths are uniform."""

CUMULATIVE = (0.2, 0.5, 0.7, 0.75, 0.85)
"""Probability of ending in one of the first one, two ... five buckets; else the limit is used up."""
BUCKETS = 5
BUCKET_TOKENS = 20
FLEXIBLE = 3
"""The bucket that takes up what a large limit has beyond the others."""


def reply_length(most: int, limited: bool, rng: Random) -> int:
    """Draw a length in tokens, 1..`most`; `limited` when the client itself set `most`.

    Only a limit of one makes a reply of one token: recorded streams always have a middle.
    """
    drawn = limited_length(most, rng) if limited else unlimited_length(most, rng)
    return max(drawn, min(2, most))


def unlimited_length(most: int, rng: Random) -> int:
    """Draw a length for a client that set no limit: a bell curve, cut at what fits the context (5.4)."""
    if most < SHORT:
        return rng.randint(1, max(most, 1))
    while True:
        drawn = rng.gauss(MEAN_TOKENS, STD_DEV_TOKENS)
        if 1 <= drawn <= most:
            return int(drawn + 0.5)


def limited_length(most: int, rng: Random) -> int:
    """Draw a length under a limit of `most` tokens from the histogram of 5.5.

    A limit too small for five buckets is used up: that is what recorded exchanges of a real vLLM
    show, where 5.5 would draw any shorter length, too.
    """
    if most <= BUCKETS + 1:
        return most
    drawn = rng.random()
    for bucket, bound in enumerate(CUMULATIVE):
        if drawn <= bound:
            return rng.randint(*bucket_range(most, bucket))
    return most


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
