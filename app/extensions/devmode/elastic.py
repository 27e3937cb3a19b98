"""Routes that scale the number of ranks, which never changes here."""

from app.core.protocol.decoding import check_content_type, read_json
from app.core.protocol.features import Feature, VllmVersion
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, internal, malformed
from app.core.server.http.route import ANY_OBJECT, Route, RouteDocs, action

FIELD_DEFAULTS = {"new_data_parallel_size": None, "drain_timeout": 120}
IDLE = {"phase": "idle", "epoch": None, "error": None, "requested_data_parallel_size": None}
"""State of scaling while no number of ranks has been requested."""


def elastic_routes(body_limits: BodyLimits, rank_count: int, version: VllmVersion) -> list[Route]:
    """Returns the routes for a server of `rank_count` ranks."""
    status: dict[str, object] = {"is_scaling_elastic_ep": False}
    if version.has(Feature.ELASTIC_STATUS):
        status |= IDLE

    def scale_elastic_ep(context: RequestContext) -> object:
        """Succeeds for the present number of ranks; others need vLLM's Ray backend."""
        check_content_type(context.content_type)
        body = read_json(body_limits.read(context))
        if not isinstance(body, dict):
            raise internal("The body must be a JSON object.")
        for name, default in FIELD_DEFAULTS.items():
            value = body.get(name, default)
            if not isinstance(value, int) or value <= 0:
                raise malformed(f"{name} must be a positive integer")
        if body["new_data_parallel_size"] != rank_count:
            raise ApiError(500, "Internal Server Error", "Scale failed")
        return {"message": f"Scaled to {rank_count} data parallel engines"}

    def is_scaling_elastic_ep(context: RequestContext) -> object:
        """Always false: ranks never come or go."""
        return status

    scale_docs = RouteDocs(body=(ANY_OBJECT,), example={"new_data_parallel_size": 1})
    return [
        action("POST /scale_elastic_ep", scale_elastic_ep, scale_docs),
        action("POST /is_scaling_elastic_ep", is_scaling_elastic_ep),
    ]
