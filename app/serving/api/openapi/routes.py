"""GET /openapi.json, /docs, /redoc and GET /: a description of this server and its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from app.base.clock.pause import call_off_hub
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get
from config import VERSION

DOCUMENT = "/openapi.json"
HTML = "text/html; charset=utf-8"
CDN = "https://cdn.jsdelivr.net/npm"
PAGE = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Understudy</title></head><body>'
    '<a href="{document}">{document}</a>{viewer}</body></html>'
)
"""Page with the viewer of vLLM's framework; without network only a link to the document."""
VIEWERS = {
    "/docs": f'<link rel="stylesheet" href="{CDN}/swagger-ui-dist@5/swagger-ui.css"><div id="docs"></div>'
    f'<script src="{CDN}/swagger-ui-dist@5/swagger-ui-bundle.js"></script>'
    '<script>SwaggerUIBundle({url: "DOCUMENT", dom_id: "#docs"})</script>',
    "/docs/oauth2-redirect": "",
    "/redoc": '<redoc spec-url="DOCUMENT"></redoc>'
    f'<script src="{CDN}/redoc@2/bundles/redoc.standalone.js"></script>',
}
WHERE = {
    "openapi": DOCUMENT,
    "health": "/health",
    "metrics": "/metrics",
}


def root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
    """GET /: `about` describes the server."""

    def root(context: RequestContext) -> Response:
        """A description of this server, with the paths of its documents."""
        paths = sorted({(route.path, method) for route in served() for method in route.methods})
        routes = [f"{method} {path}" for path, method in paths if method != "HEAD"]
        where = {name: path for name, path in WHERE.items() if f"GET {path}" in routes}
        return json_response({"name": "understudy", "version": VERSION, **about, **where, "routes": routes})

    return [get("/", root)]


def document_routes(served: Callable[[], Iterable[Route]], root_path: str, model: str) -> list[Route]:
    """Returns GET /openapi.json, which describes the routes `served` at its first use, and pages for it."""
    made: list[bytes] = []

    def openapi(context: RequestContext) -> Response:
        """This document."""
        if not made:
            # Importing and building would hold the event loop for too long.
            made.append(call_off_hub(_make, tuple(served()), root_path, model))
        return _for(context, json_response(made[0]))

    def page(context: RequestContext) -> Response:
        """The document, for people to read."""
        assert context.route is not None
        viewer = VIEWERS[context.route.path].replace("DOCUMENT", root_path + DOCUMENT)
        text = PAGE.format(document=root_path + DOCUMENT, viewer=viewer)
        return _for(context, Response(text.encode(), content_type=HTML))

    return [
        Route(methods=("GET", "HEAD"), path=DOCUMENT, handle=openapi),
        *(Route(methods=("GET", "HEAD"), path=path, handle=page) for path in VIEWERS),
    ]


def _for(context: RequestContext, response: Response) -> Response:
    """Removes the body in answers to HEAD."""
    if context.method == "HEAD":
        response.without_body()
    return response


def _make(routes: Iterable[Route], root_path: str, model: str) -> bytes:
    from app.serving.api.openapi.document import document

    return document(routes, VERSION, root_path, model)
