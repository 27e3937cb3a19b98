"""POST /invocations: the single route of SageMaker, for the bodies of all families."""

from collections.abc import Callable, Iterable

import msgspec

from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response
from app.serving.http.route import Handler, Route, RouteDocs, post
from app.serving.protocol.common import EXAMPLE_CHAT
from app.serving.protocol.decoding import Request, check_content_type, first_fit, read_json

FAMILIES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/classify",
    "/rerank",
    "/score",
    "/pooling",
)
"""Paths of the families in vLLM's order of trial; only served paths count."""
ADAPTER = "x-amzn-sagemaker-adapter-identifier"
"""Header that names the model instead of the body."""


def invocation_routes(body: BodyLimits, served: Callable[[], Iterable[Route]]) -> list[Route]:
    """Returns POST /invocations: SageMaker's single route, for all families."""
    handlers: dict[type[Request], Handler] = {}

    def invocations(context: RequestContext) -> Response:
        """Answers as the route of the body's family does."""
        check_content_type(context.content_type)
        values = read_json(body.read(context))
        if not handlers:
            by_path = {route.path: route for route in served()}
            for path in filter(by_path.__contains__, FAMILIES):
                [request_type] = by_path[path].docs.body
                handlers[request_type] = by_path[path].handle
        kind = None
        if isinstance(values, dict):
            if adapter := context.headers.get(ADAPTER):
                values["model"] = adapter
                context.body = msgspec.json.encode(values)
            kind = first_fit(values, list(handlers))
        if kind is None:
            raise bad_request(
                f"The body fits none of {', '.join(kind.__name__ for kind in handlers)}."
            )
        return handlers[kind](context)

    docs = RouteDocs(
        body=(dict[str, object],),
        example={"messages": EXAMPLE_CHAT, "max_tokens": 8},
        media=("application/json", "text/event-stream", "application/octet-stream"),
    )
    return [post("/invocations", invocations, docs=docs)]
