"""POST /scale_elastic_ep and /is_scaling_elastic_ep: no request changes how many ranks there are."""

from __future__ import annotations

from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import ApiError, internal, malformed
from app.http.response import Response, json_response
from app.http.route import Route, post
from app.protocol.decoding import check_content_type, read_json

DRAIN_TIMEOUT_S = 120


def routes(body: BodyLimits, ranks: int) -> list[Route]:

    def scale_elastic_ep(context: RequestContext) -> Response:
        """Succeed for the ranks that there are; others need vLLM's Ray backend."""
        check_content_type(context.content_type)
        asked = read_json(body.read(context))
        if not isinstance(asked, dict):
            raise internal("The body is not an object.")
        wanted = asked.get("new_data_parallel_size")
        if wanted is None:
            raise malformed("new_data_parallel_size is required")
        _check_positive("new_data_parallel_size", wanted)
        _check_positive("drain_timeout", asked.get("drain_timeout", DRAIN_TIMEOUT_S))
        if wanted != ranks:
            raise ApiError(500, "Internal Server Error", "Scale failed")
        return json_response({"message": f"Scaled to {int(wanted)} data parallel engines"})

    def is_scaling_elastic_ep(context: RequestContext) -> Response:
        """Ranks never come or go."""
        return json_response({"is_scaling_elastic_ep": False})

    return [
        post("/scale_elastic_ep", scale_elastic_ep),
        post("/is_scaling_elastic_ep", is_scaling_elastic_ep),
    ]


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or value <= 0:
        raise malformed(f"{name} must be a positive integer")
