"""A request may be pinned to a data parallel rank by the header X-data-parallel-rank.

vLLM takes a whole number as the rank's index, ignores anything else, and refuses, as a BadRequestError, an
index that it has no engine for. Our ranks are processes with a port each, so each has only its own index.

vLLM looks when the engine takes the request: call this next to `model_limits.check_engine`, so that the error
of a stream comes in the stream.
"""

from __future__ import annotations

from app.http.context import RequestContext
from app.http.errors import bad_request

HEADER = "x-data-parallel-rank"


def check_rank(context: RequestContext, rank: int) -> None:
    """ApiError 400 for a request that is pinned to another rank than `rank`, which this process plays."""
    text = context.headers.get(HEADER)
    if text is None:
        return
    try:
        pinned = int(text)
    except ValueError:
        return
    if pinned != rank:
        raise bad_request(f"X-data-parallel-rank is {pinned}, but this port serves rank {rank} only.")
