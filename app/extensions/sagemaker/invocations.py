"""POST /invocations: the single route of SageMaker, for the bodies of all families."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from app.core.protocol.coercion import ConversionError, JsonObject
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.protocol.convert import convert
from app.core.protocol.decoding import RawRequest, Request, check_content_type
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, malformed
from app.core.server.http.response import Response
from app.core.server.http.route import Handler, Route, RouteDocs, post
from app.extensions.sagemaker.body import take_body

FAMILIES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/classify",
    "/rerank",
    "/score",
    "/pooling",
)
"""Paths of the families, in vLLM's order of trial; only served paths count."""
ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"
"""Header that names the model instead of the body."""


def invocation_routes(body: BodyLimits, served: Callable[[], Iterable[Route]]) -> list[Route]:
    """Returns POST /invocations: SageMaker's single route, for all families."""
    handlers: dict[type[Request], Handler] = {}
    """Handlers by the type of their request, once the first request has come."""

    def invocations(context: RequestContext) -> Response:
        """Answers as the route of the body's family does."""
        check_content_type(context.content_type)
        values = take_body(context, body)
        if not handlers:
            routes_by_path = {route.path: route for route in served()}
            for path in FAMILIES:
                if path in routes_by_path:
                    route = routes_by_path[path].loaded()
                    for kind in route.docs.body:
                        handlers[kind] = route.handle
        request_type = None
        if isinstance(values, dict):
            if "requestType" in values:
                raise malformed("Invalid payload. stateful sessions not enabled")
            adapter = context.headers.get(ADAPTER_HEADER)
            if adapter:
                values["model"] = adapter
                # A half surrogate fails in the route, as without the header.
                with suppress(UnicodeEncodeError):
                    context.body = msgspec.json.encode(values)
            request_type = _first_fit(values, list(handlers))
        if request_type is None:
            names = ", ".join(request_type.__name__ for request_type in handlers)
            raise bad_request(f"The body is not a valid request of any of these types: {names}.")
        return handlers[request_type](context)

    docs = RouteDocs(
        body=(dict[str, object],),
        example={"messages": EXAMPLE_CHAT, "max_tokens": 8},
        media=("application/json", "text/event-stream", "application/octet-stream"),
    )
    return [post("/invocations", invocations, docs=docs)]


def _first_fit(values: JsonObject, kinds: Sequence[type[Request]]) -> type[Request] | None:
    """Returns the first of `kinds` that fits `values`, or None.

    Raises:
        ApiError: A rule of a tried kind is broken.
    """
    for kind in kinds:
        kind.check_rules(RawRequest(values, kind.rule_defaults))
        try:
            convert(kind, values)
        except ConversionError:
            continue
        return kind
    return None
