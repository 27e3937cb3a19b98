"""What a request for generation asks for by its headers, beside its body."""

from __future__ import annotations

from app.http.context import RequestContext
from app.http.errors import bad_request

RANK = "x-data-parallel-rank"
PRIORITY = "x-vllm-priority"
SEND_IMAGE = "x-send-image"
CACHE_THRESHOLD = "x-cache-threshold-finish-reason"

TRUTHS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


def check_rank(context: RequestContext, rank: int) -> None:
    """ApiError 400 for a request that is pinned to another data parallel rank than `rank`, this process's.

    vLLM takes a whole number as the rank's index, ignores anything else, and refuses, as a BadRequestError,
    an index that it has no engine for. Our ranks are processes with a port each, so each has only its own
    index. vLLM looks when the engine takes the request, so the error of a stream comes in the stream.
    """
    text = context.headers.get(RANK)
    if text is None:
        return
    try:
        pinned = int(text)
    except ValueError:
        return
    if pinned != rank:
        raise bad_request(f"X-data-parallel-rank is {pinned}, but this port serves rank {rank} only.")


def priority_of(context: RequestContext, own: int) -> int:
    """The priority of a request: its header's, or else its `own`. ApiError 400 when it is no integer."""
    given = context.headers.get(PRIORITY)
    if given is None:
        return own
    try:
        return int(given)
    except ValueError:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {given[:40]!r}") from None


def truth(context: RequestContext, header: str) -> bool | None:
    """What a header says; None without it. ApiError 400 for another word."""
    text = context.headers.get(header)
    if text is None:
        return None
    if text.lower() not in TRUTHS:
        raise bad_request(f"{header.title()} must be true or false, got {text[:40]!r}")
    return TRUTHS[text.lower()]
