"""POST /invocations: SageMaker's single route, which passes a body to the first family that it fits."""

from collections.abc import Callable, Iterable

import msgspec

from app.serving.api.openapi import BODIES
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response
from app.serving.http.route import Handler, Route, post
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


def routes(body: BodyLimits, served: Callable[[], Iterable[Route]]) -> list[Route]:
    handlers: dict[type[Request], Handler] = {}

    def invocations(context: RequestContext) -> Response:
        """Answers as the route of the body's family does."""
        check_content_type(context.content_type)
        values = read_json(body.read(context))
        if not handlers:
            by_path = {route.path: route.handle for route in served()}
            for path in filter(by_path.__contains__, FAMILIES):
                [kind], _ = BODIES[path]
                handlers[kind] = by_path[path]
        kind = None
        if isinstance(values, dict):
            if adapter := context.headers.get(ADAPTER):
                values["model"] = adapter
                context.body = msgspec.json.encode(values)
            kind = first_fit(values, list(handlers))
        if kind is None:
            raise bad_request(f"The body fits none of {', '.join(kind.__name__ for kind in handlers)}.")
        return handlers[kind](context)

    return [post("/invocations", invocations)]
