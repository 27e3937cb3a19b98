"""GET /openapi.json, /docs, /redoc and GET /: schemas from structs, operations from their table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.base.clock.pause import call_off_hub
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get
from config import VERSION

Schema = dict[str, Any]

DOCUMENT = "/openapi.json"
JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
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
WHERE = {"openapi": DOCUMENT, "health": "/health", "metrics": "/metrics"}


def root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
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
            made.append(call_off_hub(document, tuple(served()), root_path, model))
        return json_response(made[0])

    def page(context: RequestContext) -> Response:
        """The document, for people to read."""
        assert context.route is not None
        viewer = VIEWERS[context.route.path].replace("DOCUMENT", root_path + DOCUMENT)
        text = PAGE.format(document=root_path + DOCUMENT, viewer=viewer)
        return Response(text.encode(), content_type=HTML)

    handlers = {DOCUMENT: openapi, **dict.fromkeys(VIEWERS, page)}
    return [Route(methods=("GET", "HEAD"), path=path, handle=handle) for path, handle in handlers.items()]


ABOUT = (
    "Plays a vLLM server: its API, its metrics and its timing, without a model. Bodies are taken as "
    "leniently as vLLM takes them; rules that no schema can say are told by a 400."
)
_VARIABLE = re.compile(r"\{(\w+)\}")


class ErrorInfo(Struct):
    """An error; `param` is the field, `code` the status."""

    message: str
    type: str
    param: str | None
    code: int


class Error(Struct):
    """The body of an error."""

    error: ErrorInfo


class RoutingError(Struct):
    """The body when there is no such route, or not with this method."""

    detail: str


def document(routes: Iterable[Route], root_path: str, model: str) -> bytes:
    """Returns the document as JSON. Examples name `model` where they need a model."""
    from app.serving.api.openapi import operations as known  # imports all families

    rows = [(method, route) for route in routes for method in route.methods if method != "HEAD"]
    kinds: set[Any] = {Error, RoutingError}
    for _, route in rows:
        kinds |= {*known.BODIES.get(route.path, ((),))[0], *known.ERRORS.get(route.path, ())}
        kinds |= {known.ANSWERS[route.path]} if route.path in known.ANSWERS else set()
    listed = sorted(kinds, key=repr)
    schemas, components = msgspec.json.schema_components(
        listed, schema_hook=lambda kind: {"description": "Any JSON."}, ref_template=REFERENCE
    )
    described = dict(zip(listed, schemas, strict=True))
    paths = dict[str, Schema]()
    for method, route in rows:
        paths.setdefault(route.path, {})[method.lower()] = _operation(method, route, described, model)
    info = {"title": "Understudy", "version": VERSION, "description": ABOUT}
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    parts = {"info": info, **servers, "paths": paths, "components": {"schemas": components}}
    return msgspec.json.encode({"openapi": "3.1.0", **parts})


def _operation(method: str, route: Route, described: Mapping[Any, Schema], model: str) -> Schema:
    from app.serving.api.openapi import operations as known

    path = route.path
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _VARIABLE.findall(path)
    ]
    if query := known.QUERIES.get(f"{method} {path}"):
        [its] = msgspec.json.schema(query)["$defs"].values()
        parameters += [{"name": name, "in": "query", "schema": it} for name, it in its["properties"].items()]
    media = known.MEDIA.get(path, (JSON,) if path in known.ANSWERS else known.ANY_MEDIA)
    content: Schema = {kind: {} for kind in media}
    if JSON in content:
        content[JSON] = {"schema": described.get(known.ANSWERS.get(path), {})}
    errors = [described[kind] for kind in (Error, RoutingError, *known.ERRORS.get(path, ()))]
    bad = {"description": "Why not.", "content": {JSON: {"schema": {"anyOf": errors}}}}
    good = {"description": "What was asked for.", **({"content": content} if content else {})}
    operation: Schema = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": (route.handle.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {"204" if path == "/fake_metrics" else "200": good, "4XX": bad, "5XX": bad},
    }
    if method == "POST" and path in known.BODIES:
        kinds, example = known.BODIES[path]
        named = {**example, "model": model} if "model" in example else example
        schema = described[kinds[0]] if len(kinds) == 1 else {"anyOf": [described[kind] for kind in kinds]}
        body = {JSON: {"schema": schema, "example": named}}
        operation["requestBody"] = {"required": path not in known.OPTIONAL, "content": body}
    return operation
