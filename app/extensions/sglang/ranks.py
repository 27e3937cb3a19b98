"""Ranks that requests of the OpenAI routes name in their bodies."""

import json

from app.core.api.errors import error_response
from app.core.api.headers import RANK_HEADER
from app.core.server.http.context import BodyLimits, RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware

OPENAI_ROUTES = frozenset(("/v1/chat/completions", "/v1/completions"))
RANK_FIELDS = ("routed_dp_rank", "data_parallel_rank")
"""Fields of a body that name a rank; routers send the second one. The first one has priority."""
RANK_MARK = b"_rank"
"""Part of the names of both fields: bodies without it are not parsed."""


class DataParallelRanks(Middleware):
    """Passes the rank in the body of a request on as a header, which all routes read."""

    concerns_plain = False  # no plain request has such a field

    def __init__(self, body: BodyLimits) -> None:
        self._body = body

    def begin(self, context: RequestContext) -> Response | None:
        """Adds the header; an invalid body is left to the route."""
        if context.label not in OPENAI_ROUTES or RANK_HEADER in context.headers:
            return None
        try:
            body = self._body.read(context)
        except ApiError as error:
            return error_response(error)
        if RANK_MARK in body:
            rank = rank_of(body)
            if rank is not None:
                context.headers = {**context.headers, RANK_HEADER: str(rank)}
        return None


def rank_of(body: bytes) -> int | None:
    """Returns the rank that a JSON body names; None without one."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    for field in RANK_FIELDS:
        rank = values.get(field)
        if isinstance(rank, int) and not isinstance(rank, bool):
            return rank
    return None
