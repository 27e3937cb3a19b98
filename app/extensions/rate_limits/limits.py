"""Limits of requests and tokens per minute, per API key, like those of gateways and providers.

A request without a key counts for its address. Headers and error follow OpenAI (docs/access.md).
"""

import math
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from app.core.base.clock.clock import Clock
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.core.server.http.context import RequestContext, bearer
from app.core.server.http.errors import too_many
from app.core.server.http.response import Response
from app.extensions.rate_limits.settings import RateLimitSettings
from app.shared.quotas import Buckets
from app.shared.token_bucket import ROUNDING_S, TokenBucket

LIMITED_PATHS = frozenset(
    (
        "/classify",
        "/cohere/v2/chat",
        "/generative_scoring",
        "/inference/v1/generate",
        "/invocations",
        "/pooling",
        "/rerank",
        "/score",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/decisions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
        "/v1/systemone",
        "/v2/embed",
        "/v2/rerank",
        "/vllm.grpc.engine.VllmEngine/Embed",
        "/vllm.grpc.engine.VllmEngine/Generate",
    )
)
"""Paths whose requests the engine serves. A test sends the example of every route."""
MAX_CALLERS = 10_000
"""Most remembered clients, by last use."""
CALLER_BYTES = 1000
"""Memory of a client's hash and buckets in bytes, measured."""
MINUTE_S = 60.0
NO_BUCKETS = Buckets(requests=None, tokens=None)


class CallerLimits:
    """Limits clients by their use. Belongs to one greenlet hub; times come from `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests_limit: int | None = None
        self._tokens_limit: int | None = None
        self._callers: LRUCache[bytes, Buckets] = LRUCache(MAX_CALLERS)
        self.limit_bytes = MAX_CALLERS * CALLER_BYTES

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the remembered clients."""
        return len(self._callers) * CALLER_BYTES

    def apply(self, settings: RateLimitSettings) -> None:
        """Applies the limits. The next request of each client replaces buckets of other limits."""
        self._requests_limit = settings.requests_per_minute
        self._tokens_limit = settings.tokens_per_minute

    def count(self, context: RequestContext) -> None:
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

    def add_headers(self, context: RequestContext, response: Response) -> None:
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
        buckets = self._callers.get(caller, NO_BUCKETS)
        requests = self._bucket(buckets.requests, self._requests_limit)
        tokens = self._bucket(buckets.tokens, self._tokens_limit)
        if requests is not buckets.requests or tokens is not buckets.tokens:
            buckets = Buckets(requests=requests, tokens=tokens)
            self._callers[caller] = buckets
        return buckets

    def _bucket(self, bucket: TokenBucket | None, limit: int | None) -> TokenBucket | None:
        """Returns the bucket of a client; a new one, which is full, for another limit."""
        if limit is None:
            return None
        if bucket is not None and bucket.per_minute == limit:
            return bucket
        return TokenBucket(limit, now_s=self._clock.now())


def _exceeded(limit: int | None, unit: str, wait_s: float) -> Exception:
    retry_after_s = math.ceil(wait_s - ROUNDING_S)
    return too_many(
        f"The limit of {limit} {unit} per minute is used up; retry in {retry_after_s} s.",
        retry_after_s,
    )
