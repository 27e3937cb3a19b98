"""Ranks that requests of the OpenAI routes name in their bodies."""

import msgspec
from msgspec import Struct

from app.core.api.errors import error_response
from app.core.api.headers import RANK_HEADER
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from app.extensions.sglang.openai_forms import GENERATING
from config.untrusted import UntrustedDataError, decode_untrusted

RANK_MARK = b"_rank"
"""Part of the names of the fields: bodies without it are not parsed."""


class DataParallelRanks(Middleware):
    """Passes the rank in the body of a request on as a header, which all routes read."""

    concerns_plain = False  # no plain request has such a field

    def __init__(self, body: BodyLimits) -> None:
        self._body = body

    def begin(self, context: RequestContext) -> Response | None:
        """Adds the header; an invalid body is left to the route."""
        if context.label not in GENERATING or RANK_HEADER in context.headers:
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


class RankFields(Struct):
    """The fields of a body that name a rank; routers send the second one. The first has priority.

    Other fields are skipped: a body may have many megabytes.
    """

    routed_dp_rank: object = None
    data_parallel_rank: object = None


_field_decoder = msgspec.json.Decoder(RankFields)


def rank_of(body: bytes) -> int | None:
    """Returns the rank that a JSON body names; None without one."""
    try:
        fields = decode_untrusted(body, decoder=_field_decoder)
    except UntrustedDataError:
        return None
    for rank in (fields.routed_dp_rank, fields.data_parallel_rank):
        if type(rank) is int:
            return rank
    return None
