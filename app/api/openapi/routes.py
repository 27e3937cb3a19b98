"""GET /openapi.json and GET /: what this server is, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from app.clock.pause import call_off_hub
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get
from config import VERSION

DOCUMENT = "/openapi.json"
WHERE = {
    "openapi": DOCUMENT,
    "health": "/health",
    "metrics": "/metrics",
}


def root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
    """GET /: `about` is what the server says of itself."""

    def root(context: RequestContext) -> Response:
        """What this is, and where to look."""
        paths = sorted({(route.path, method) for route in served() for method in route.methods})
        routes = [f"{method} {path}" for path, method in paths if method != "HEAD"]
        where = {name: path for name, path in WHERE.items() if f"GET {path}" in routes}
        return json_response({"name": "understudy", "version": VERSION, **about, **where, "routes": routes})

    return [get("/", root)]


def document_routes(served: Callable[[], Iterable[Route]], root_path: str, model: str) -> list[Route]:
    """GET /openapi.json, of all routes that are `served` when it is asked for first."""
    made: list[bytes] = []

    def openapi(context: RequestContext) -> Response:
        """This document."""
        if not made:
            # What it imports and makes would hold the event loop for longer than anybody may.
            made.append(call_off_hub(_make, tuple(served()), root_path, model))
        response = json_response(made[0])
        if context.method == "HEAD":
            response.without_body()
        return response

    return [Route(methods=("GET", "HEAD"), path=DOCUMENT, handle=openapi)]


def _make(routes: Iterable[Route], root_path: str, model: str) -> bytes:
    from app.api.openapi.document import document

    return document(routes, VERSION, root_path, model)
