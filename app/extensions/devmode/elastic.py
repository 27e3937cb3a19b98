"""Routes that scale the number of ranks, which never changes here."""

from msgspec import Raw, Struct

from app.core.protocol.decoding import check_content_type, read_json
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, internal, malformed
from app.core.server.http.route import ANY_OBJECT, Route, RouteDocs, action
from app.core.versions.shape import Shape

FIELD_DEFAULTS = {"new_data_parallel_size": None, "drain_timeout": 120}


class ElasticStatus(Struct, frozen=True):
    """State of scaling while no number of ranks has been requested."""

    is_scaling_elastic_ep: bool = False
    phase: str = "idle"
    epoch: None = None
    error: None = None
    requested_data_parallel_size: None = None


def elastic_routes(body_limits: BodyLimits, rank_count: int, shape: Shape) -> list[Route]:
    """Returns the routes for a server of `rank_count` ranks."""
    status = Raw(shape.encode(ElasticStatus()))

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
