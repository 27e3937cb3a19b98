"""The quota of a `rate-limit` rule, told in the headers that OpenAI's clients know."""

from __future__ import annotations

import math

from app.clock.token_bucket import TokenBucket
from app.http.errors import ApiError
from config.durations import format_duration
from config.fault_rules import RateLimitRule


class Quota:
    """Requests and, if the rule has them, tokens; both are real buckets."""

    def __init__(self, rule: RateLimitRule, now_s: float) -> None:
        self._requests = TokenBucket(rule.rate, max(rule.burst or rule.rate, 1.0), now_s)
        self._tokens = TokenBucket(rule.token_rate, rule.token_burst, now_s) if rule.token_rate else None

    def ask(self, tokens: float, now_s: float) -> ApiError | None:
        """Take a request of so many tokens; or the 429 that says when it could be had, and nothing is taken.

        A request of more tokens than there can ever be takes them all.
        """
        tokens = min(tokens, self._tokens.burst) if self._tokens else 0.0
        wait_s = self._requests.wait(1.0, now_s)
        if self._tokens:
            wait_s = max(wait_s, self._tokens.wait(tokens, now_s))
        if not wait_s:
            self._requests.spend(1.0, now_s)
            if self._tokens:
                self._tokens.spend(tokens, now_s)
            return None
        retry_after_s = math.ceil(wait_s)
        return ApiError(
            429,
            "RateLimitError",
            f"The quota of {self._requests.per_minute:g} requests per minute is used up; "
            f"try again in {retry_after_s} s.",
            headers={"Retry-After": str(retry_after_s)},
        )

    def headers(self, now_s: float) -> dict[str, str]:
        """What is left, and how long until all is there again."""
        told = _headers("requests", self._requests, now_s)
        return told | _headers("tokens", self._tokens, now_s) if self._tokens else told


def _headers(unit: str, bucket: TokenBucket, now_s: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": f"{int(bucket.burst)}",
        f"x-ratelimit-remaining-{unit}": f"{int(bucket.remaining(now_s))}",
        f"x-ratelimit-reset-{unit}": format_duration(math.ceil(bucket.full_in(now_s) * 1000) / 1000),
    }
