"""GET /openapi.json, /docs, /redoc and GET /.

The document is made from the types that each route declares (`RouteDocs` of `route.py`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.core.base.clock.pause import call_off_hub, pause_if_possible
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, get
from app.core.versions.chain import PlayedVersion
from app.core.versions.shape import NEWEST_SHAPE, Shape, schemas_of
from app.core.versions.structs import structs_in
from config import VERSION
from vllm_facts.names import read_names
from vllm_facts.version import OF_CODE
from vllm_facts.version_order import new_fields

Schema = dict[str, Any]
OtherFields = Mapping[str, Sequence[str]]
"""Names of fields by the name of their class in vLLM."""
NO_FIELDS: OtherFields = {}

ANY_MEDIA = ("application/json", "text/plain", "text/html")
DOCUMENT = "/openapi.json"
JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
HTML = "text/html; charset=utf-8"
CDN = "https://cdn.jsdelivr.net/npm"
PAGE = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Understudy</title></head>'
    '<body><a href="{document}">{document}</a>{viewer}</body></html>'
)
"""Page with the viewer of vLLM's framework; without network only a link to the document."""
VIEWERS = {
    "/docs": f'<link rel="stylesheet" href="{CDN}/swagger-ui-dist@5/swagger-ui.css">'
    '<div id="docs"></div>'
    f'<script src="{CDN}/swagger-ui-dist@5/swagger-ui-bundle.js"></script>'
    '<script>SwaggerUIBundle({url: "DOCUMENT", dom_id: "#docs"})</script>',
    "/docs/oauth2-redirect": "",
    "/redoc": '<redoc spec-url="DOCUMENT"></redoc>'
    f'<script src="{CDN}/redoc@2/bundles/redoc.standalone.js"></script>',
}
LINKS = {"openapi": DOCUMENT, "health": "/health", "metrics": "/metrics"}
ABOUT = (
    "Plays a vLLM server: its API, its metrics and its timing, without a model. Bodies are "
    "accepted as leniently as vLLM accepts them; a rule that no schema can express is a 400."
)
VARIABLE = re.compile(r"\{(\w+)\}")
NOT_IN_IDS = re.compile("[^a-z0-9]+")


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


def root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
    """Returns GET /, which lists the routes `served` and shows `about`."""

    def root(context: RequestContext) -> Response:
        """A description of this server, with the paths of its documents."""
        operations = _operations(served())
        paths = sorted({(route.path, method) for method, route in operations})
        routes = [f"{method} {path}" for path, method in paths]
        description: dict[str, object] = {"name": "understudy", "version": VERSION, **about}
        for name, path in LINKS.items():
            if f"GET {path}" in routes:
                description[name] = path
        return json_response({**description, "routes": routes})

    return [get("/", root)]


def document_routes(
    served: Callable[[], Iterable[Route]], root_path: str, model: str, played: PlayedVersion
) -> list[Route]:
    """Returns GET /openapi.json and the pages that show the document.

    The document describes the routes `served` at its first use, with the fields of the played
    version, also if the structs of the code lack some.
    """
    json_document: bytes | None = None

    def openapi(context: RequestContext) -> Response:
        """This document."""
        nonlocal json_document
        if json_document is None:
            routes = []
            for route in served():
                routes.append(route.loaded())
                pause_if_possible()
            # Building would hold the event loop for too long.
            json_document = call_off_hub(
                document,
                routes,
                root_path,
                model,
                shape=played.documented,
                other_fields=_fields_without_structs(played),
            )
        return json_response(json_document)

    def page(context: RequestContext) -> Response:
        """The document, for people to read."""
        assert context.route is not None
        viewer = VIEWERS[context.route.path].replace("DOCUMENT", root_path + DOCUMENT)
        text = PAGE.format(document=root_path + DOCUMENT, viewer=viewer)
        return Response(text.encode(), content_type=HTML)

    methods = ("GET", "HEAD")
    routes = [Route(methods=methods, path=DOCUMENT, handle=openapi)]
    for path in VIEWERS:
        routes.append(Route(methods=methods, path=path, handle=page))
    return routes


def document(
    routes: Iterable[Route],
    root_path: str,
    model: str,
    *,
    shape: Shape = NEWEST_SHAPE,
    other_fields: OtherFields = NO_FIELDS,
) -> bytes:
    """Returns the document as JSON. Examples name `model` where they need a model."""
    operations = _operations(routes)
    types: set[Any] = {Error, RoutingError}
    for _, route in operations:
        types.update(route.docs.body)
        types.update(route.docs.errors)
        if route.docs.answer is not None:
            types.add(route.docs.answer)
    sorted_types = sorted(types, key=repr)
    schemas, components = msgspec.json.schema_components(
        sorted_types, schema_hook=_any_json, ref_template=REFERENCE
    )
    for kind in structs_in(sorted_types):
        component = components.get(kind.__name__, {})
        for name in shape.absent_fields(kind):
            component.get("properties", {}).pop(name, None)
            if name in component.get("required", ()):
                component["required"].remove(name)
        for schema in schemas_of(kind):
            for name in other_fields.get(schema, ()):
                component.get("properties", {}).setdefault(name, _any_json(object))
    schema_of = dict(zip(sorted_types, schemas, strict=True))
    paths = dict[str, Schema]()
    for method, route in operations:
        operation = _operation(method, route, schema_of, model)
        paths.setdefault(route.path, {})[method.lower()] = operation
    info = {"title": "Understudy", "version": VERSION, "description": ABOUT}
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    parts = {"info": info, **servers, "paths": paths, "components": {"schemas": components}}
    return msgspec.json.encode({"openapi": "3.1.0", **parts})


def _fields_without_structs(played: PlayedVersion) -> OtherFields:
    """Returns the fields of another version than the code's that the structs lack."""
    if played.version.name == OF_CODE:
        return NO_FIELDS
    return new_fields(read_names(), played.release)


def _operations(routes: Iterable[Route]) -> list[tuple[str, Route]]:
    """Returns each method of each route, without HEAD."""
    operations = []
    for route in routes:
        for method in route.methods:
            if method != "HEAD":
                operations.append((method, route))
    return operations


def _any_json(json_type: type) -> Schema:
    """Returns the schema of a type that msgspec has none for, such as a raw JSON value."""
    return {"description": "Any JSON."}


def _operation(method: str, route: Route, schema_of: Mapping[Any, Schema], model: str) -> Schema:
    docs = route.docs
    errors = [schema_of[error] for error in (Error, RoutingError, *docs.errors)]
    failure = {"description": "Error.", "content": {JSON: {"schema": {"anyOf": errors}}}}
    path_id = NOT_IN_IDS.sub("_", route.path.lower())
    description = route.handle.__doc__ or ""
    operation: Schema = {
        "operationId": f"{method.lower()}{path_id}".rstrip("_"),
        "summary": description.partition("\n")[0],
        "parameters": _parameters(route),
        "responses": {str(docs.status): _success(docs, schema_of), "4XX": failure, "5XX": failure},
    }
    if docs.body:
        operation["requestBody"] = _request_body(docs, schema_of, model)
    return operation


def _parameters(route: Route) -> list[Schema]:
    """Returns the variable parts of the path, then the parameters of the query."""
    parameters: list[Schema] = []
    text_schema = {"type": "string", "minLength": 1}
    for name in VARIABLE.findall(route.path):
        parameters.append({"name": name, "in": "path", "required": True, "schema": text_schema})
    if route.docs.query is not None:
        [query_schema] = msgspec.json.schema(route.docs.query)["$defs"].values()
        for name, schema in query_schema["properties"].items():
            parameters.append({"name": name, "in": "query", "schema": schema})
    return parameters


def _success(docs: RouteDocs, schema_of: Mapping[Any, Schema]) -> Schema:
    media = docs.media
    if media is None and docs.answer is None:
        media = ANY_MEDIA
    elif media is None:
        media = (JSON,)
    content: Schema = {media_type: {} for media_type in media}
    if JSON in content:
        content[JSON] = {"schema": schema_of.get(docs.answer, {})}
    success: Schema = {"description": "Success."}
    if content:
        success["content"] = content
    return success


def _request_body(docs: RouteDocs, schema_of: Mapping[Any, Schema], model: str) -> Schema:
    schemas = [schema_of[body] for body in docs.body]
    schema: Schema = {"anyOf": schemas}
    if len(schemas) == 1:
        [schema] = schemas
    example = dict(docs.example)
    if "model" in example:
        example["model"] = model
    content = {JSON: {"schema": schema, "example": example}}
    return {"required": not docs.body_is_optional, "content": content}
