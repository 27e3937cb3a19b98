"""Limits of requests and tokens per minute, per API key, like those of gateways and providers.

A request without a key counts for its address. Headers and error follow OpenAI (docs/access.md).
"""

import math
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from cachetools import LRUCache

from app.core.base.clock.clock import Clock
from app.core.base.clock.token_bucket import ROUNDING_S, TokenBucket
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.core.server.http.context import RequestContext, bearer
from app.core.server.http.errors import too_many
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from config.durations import format_duration
from config.settings import Settings

LIMITED_PATHS = frozenset(
    (
        "/generative_scoring",
        "/inference/v1/generate",
        "/invocations",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/responses",
        "/v1/systemone",
        "/v2/embed",
        "/vllm.grpc.engine.VllmEngine/Embed",
        "/vllm.grpc.engine.VllmEngine/Generate",
    )
)
MAX_CALLERS = 10_000
"""Most remembered clients, by last use."""
CALLER_BYTES = 1000
"""Memory of a client's hash and buckets in bytes, measured."""
MINUTE_S = 60.0
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


class RateLimits(Middleware):
    """Limits clients by their use. Belongs to one greenlet hub; times come from `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests_limit: int | None = None
        self._tokens_limit: int | None = None
        self._callers: LRUCache[bytes, Buckets] = LRUCache(MAX_CALLERS)
        self.limit_bytes = MAX_CALLERS * CALLER_BYTES
        self.active = False

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the remembered clients."""
        return len(self._callers) * CALLER_BYTES

    def on_settings(self, settings: Settings) -> None:
        """Applies the limits; changed limits start with full buckets."""
        requests_limit = settings.access.requests_per_minute
        tokens_limit = settings.access.tokens_per_minute
        if (requests_limit, tokens_limit) != (self._requests_limit, self._tokens_limit):
            self._requests_limit = requests_limit
            self._tokens_limit = tokens_limit
            self._callers.clear()
        self.active = requests_limit is not None or tokens_limit is not None

    def begin(self, context: RequestContext) -> None:
        """Counts the request.

        Raises:
            ApiError: 429 when its client has reached a limit.
        """
        if context.method != "POST" or context.path not in LIMITED_PATHS:
            return
        key = bearer(context.headers)
        caller = context.client.encode() if key is None else sha256(key).digest()
        buckets = self._buckets_of(caller)
        now_s = self._clock.now()
        context.keep(buckets)
        context.observers = (*context.observers, partial(self._observe, caller))
        tokens = buckets.tokens
        if tokens is not None:  # it may be in debt, and has to hold a token again
            debt_s = tokens.full_in(now_s) - (tokens.burst - 1) * MINUTE_S / tokens.per_minute
            if debt_s > ROUNDING_S:
                raise _exceeded(self._tokens_limit, "tokens", debt_s)
        if buckets.requests is not None:
            wait_s = buckets.requests.take(1, now_s)
            if wait_s > 0:
                raise _exceeded(self._requests_limit, "requests", wait_s)

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the headers of the client's limits."""
        buckets = context.kept(Buckets)
        if buckets is not None:
            response.headers.update(buckets.headers(self._clock.now()))

    def charge(self, caller: bytes, tokens: int) -> None:
        """Subtracts tokens from the caller's bucket; below one token its requests are refused."""
        bucket = self._buckets_of(caller).tokens
        if bucket is not None:
            bucket.spend(tokens, self._clock.now())

    def _observe(self, caller: bytes, request: EngineRequest) -> Watch:
        """Charges the prompt, and the reply at its end."""
        if request.index % request.n == 0:
            self.charge(caller, len(request.prompt_ids))
        return partial(self._charge_reply, caller)

    def _charge_reply(self, caller: bytes, outcome: SequenceOutcome) -> None:
        self.charge(caller, outcome.tokens)

    def _buckets_of(self, caller: bytes) -> Buckets:
        buckets = self._callers.get(caller)
        if buckets is None:
            buckets = Buckets(
                requests=self._new_bucket(self._requests_limit),
                tokens=self._new_bucket(self._tokens_limit),
            )
            self._callers[caller] = buckets
        return buckets

    def _new_bucket(self, limit: int | None) -> TokenBucket | None:
        if not limit:
            return None
        return TokenBucket(limit, now_s=self._clock.now())


def _exceeded(limit: int | None, unit: str, wait_s: float) -> Exception:
    retry_after_s = math.ceil(wait_s - ROUNDING_S)
    return too_many(
        f"The limit of {limit} {unit} per minute is used up; retry in {retry_after_s} s.",
        retry_after_s,
    )
