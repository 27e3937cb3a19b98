"""Headers of OpenAI for the remainder of a client's quota."""

from typing import NamedTuple

from app.shared.token_bucket import TokenBucket
from config.durations import format_duration

ROUNDING_TOKENS = 1e-6
"""Tolerance in tokens; larger than any rounding error of the sums."""


class Buckets(NamedTuple):
    """Token buckets of a quota; None is no limit."""

    requests: TokenBucket | None
    tokens: TokenBucket | None

    def headers(self, now_s: float) -> dict[str, str]:
        """Returns OpenAI's headers: limits, remainders and times until the buckets are full."""
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                remaining = int(bucket.remaining(now_s) + ROUNDING_TOKENS)
                headers[f"x-ratelimit-limit-{name}"] = str(int(bucket.burst))
                headers[f"x-ratelimit-remaining-{name}"] = str(remaining)
                headers[f"x-ratelimit-reset-{name}"] = format_duration(
                    round(bucket.full_in(now_s), 3)
                )
        return headers
