"""Headers of requests that choose a rank, a priority or a part of the answer."""

from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request

RANK_HEADER = "x-data-parallel-rank"
PRIORITY_HEADER = "x-vllm-priority"
IMAGE_HEADER = "x-send-image"
CACHE_THRESHOLD_HEADER = "x-cache-threshold-finish-reason"
BOOLEANS = {
    "1": True,
    "t": True,
    "true": True,
    "0": False,
    "f": False,
    "false": False,
}
"""Values of boolean headers, in lower case."""


def check_rank(context: RequestContext, rank: int) -> None:
    """Raises ApiError 400 for a request to another rank.

    As in vLLM, a header without a number is ignored.
    """
    try:
        requested_rank = int(context.headers[RANK_HEADER])
    except ValueError:
        return
    if requested_rank != rank:
        raise bad_request(
            f"X-data-parallel-rank is {requested_rank}, but this port serves rank {rank} only."
        )


def priority_of(context: RequestContext, default: int) -> int:
    """Returns the priority of the header, else `default`.

    Raises:
        ApiError: 400 when the header is not an integer.
    """
    text = context.headers.get(PRIORITY_HEADER, str(default))
    try:
        return int(text)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {text[:40]!r}") from None


def boolean_header(context: RequestContext, header: str) -> bool | None:
    """Returns the value of a boolean header, or None without the header.

    Raises:
        ApiError: 400 for another word.
    """
    text = context.headers.get(header)
    if text is None:
        return None
    if text.lower() not in BOOLEANS:
        raise bad_request(f"{header.title()} must be true or false, got {text[:40]!r}")
    return BOOLEANS[text.lower()]
