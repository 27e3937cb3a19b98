"""Headers of requests that choose a rank, a priority or a part of the answer."""

from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from config.settings import ServerSettings

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


def pinned_engine(context: RequestContext, server: ServerSettings, rank: int) -> int | None:
    """Returns the position of the requested rank among the engines of this port.

    Returns None where the port has one rank, and, as vLLM does, for a header without a number.

    Raises:
        ApiError: 400 for a rank that this port does not have.
    """
    try:
        requested_rank = int(context.headers[RANK_HEADER])
    except ValueError:
        return None
    if server.data_parallel_mode != "ports":
        return local_engine(requested_rank, server)
    if requested_rank != rank:
        raise bad_request(
            f"X-data-parallel-rank is {requested_rank}, but this port serves only rank {rank}."
        )
    return None


def local_engine(requested_rank: int, server: ServerSettings) -> int:
    """Returns the position of a rank, which counts from 0 on every port, among its engines.

    Raises:
        ApiError: 400 for a rank that the port does not have.
    """
    engine_count = server.engines_per_port
    if 0 <= requested_rank < engine_count:
        return requested_rank
    raise bad_request(f"data_parallel_rank {requested_rank} is out of range [0, {engine_count}).")


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
