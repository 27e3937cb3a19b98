"""Limits of requests and tokens per minute, per API key, like those of gateways and providers.

A request without a key counts for its address. Headers and error follow OpenAI (docs/access.md).
"""

import math
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from cachetools import LRUCache

from app.base.clock.clock import Clock
from app.base.clock.token_bucket import ROUNDING_S, TokenBucket
from app.engine.core.request import EngineRequest, Watch
from app.serving.http.context import RequestContext, bearer
from app.serving.http.errors import too_many
from app.serving.http.response import Response
from app.serving.middleware.stack import Middleware
from config.kinds import format_duration
from config.settings import Settings

LIMITED = frozenset(
    (
        *(
            "/v1/chat/completions",
            "/v1/chat/completions/batch",
            "/v1/completions",
            "/v1/embeddings",
        ),
        *("/v2/embed", "/generative_scoring", "/v1/systemone", "/v1/messages", "/v1/responses"),
        *("/inference/v1/generate", "/invocations"),
        *("/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"),
    )
)
MOST_CALLERS, CALLER_BYTES = 10_000, 1000
"""Most remembered clients, by last use; memory of a client's hash and buckets in bytes, measured.
"""
MINUTE_S = 60.0
ROUNDING_TOKENS = 1e-6
"""Tolerance in tokens; larger than any rounding error of the sums."""


class Buckets(NamedTuple):
    """Token buckets of a quota; None is no limit."""

    requests: TokenBucket | None
    tokens: TokenBucket | None

    def headers(self, now_s: float) -> dict[str, str]:
        """Returns the limits, the remainders and the times until the buckets are full, as OpenAI
        does.
        """
        told = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                told[f"x-ratelimit-limit-{name}"] = str(int(bucket.burst))
                told[f"x-ratelimit-remaining-{name}"] = str(
                    int(bucket.remaining(now_s) + ROUNDING_TOKENS)
                )
                told[f"x-ratelimit-reset-{name}"] = format_duration(round(bucket.full_in(now_s), 3))
        return told


class RateLimits(Middleware):
    """Limits clients by their use. Belongs to one greenlet hub; times come from `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: tuple[int | None, int | None] = (None, None)
        self._callers: LRUCache[bytes, Buckets] = LRUCache(MOST_CALLERS)
        self.limit_bytes = MOST_CALLERS * CALLER_BYTES
        self.active = False

    @property
    def size_bytes(self) -> int:
        return len(self._callers) * CALLER_BYTES

    def on_settings(self, settings: Settings) -> None:
        """Applies the limits; changed limits start with full buckets."""
        limits = settings.access.requests_per_minute, settings.access.tokens_per_minute
        if limits != self._limits:
            self._limits = limits
            self._callers.clear()
        self.active = limits != (None, None)

    def begin(self, context: RequestContext) -> None:
        """Counts the request. ApiError 429 when its client has reached a limit."""
        if context.method != "POST" or context.path not in LIMITED:
            return
        key = bearer(context.headers)
        caller = context.client.encode() if key is None else sha256(key).digest()
        buckets, now_s = self._buckets_of(caller), self._clock.now()
        requests, tokens = buckets
        context.keep(buckets)
        context.observers = (*context.observers, partial(self._observe, caller))
        if tokens is not None:  # it may be in debt, and has to hold a token again
            debt_s = tokens.full_in(now_s) - (tokens.burst - 1) * MINUTE_S / tokens.per_minute
            if debt_s > ROUNDING_S:
                raise _exceeded(self._limits[1], "tokens", debt_s)
        wait_s = requests.take(1, now_s) if requests is not None else 0.0
        if wait_s > 0:
            raise _exceeded(self._limits[0], "requests", wait_s)

    def end(self, context: RequestContext, response: Response) -> None:
        if (buckets := context.kept(Buckets)) is not None:
            response.headers.update(buckets.headers(self._clock.now()))

    def charge(self, caller: bytes, tokens: int) -> None:
        """Subtracts tokens from the caller's bucket; below one token its requests are refused."""
        bucket = self._buckets_of(caller).tokens
        if bucket is not None:
            bucket.spend(tokens, self._clock.now())

    def _observe(self, caller: bytes, request: EngineRequest) -> Watch:
        if request.index % request.n == 0:
            self.charge(caller, len(request.prompt_ids))
        return lambda outcome: self.charge(caller, outcome.tokens)

    def _buckets_of(self, caller: bytes) -> Buckets:
        buckets = self._callers.get(caller)
        if buckets is None:
            now_s = self._clock.now()
            requests, tokens = (
                TokenBucket(most, now_s=now_s) if most else None for most in self._limits
            )
            buckets = self._callers[caller] = Buckets(requests, tokens)
        return buckets


def _exceeded(limit: int | None, what: str, wait_s: float) -> Exception:
    retry_after_s = math.ceil(wait_s - ROUNDING_S)
    return too_many(
        f"The limit of {limit} {what} per minute is used up; retry in {retry_after_s} s.",
        retry_after_s,
    )
