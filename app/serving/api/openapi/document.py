"""GET /openapi.json, /docs, /redoc and GET /: schemas from structs, operations from their table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from app.base.clock.pause import call_off_hub
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get
from app.serving.protocol.coercion import JsonObject
from config import VERSION

Schema = dict[str, Any]

DOCUMENT = "/openapi.json"
JSON = "application/json"
REFERENCE = "#/components/schemas/"
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


def document(routes: Iterable[Route], root_path: str, model: str) -> bytes:
    """Returns the document as JSON. Examples name `model` where they need a model."""
    schemas, paths = Schemas(), dict[str, Schema]()
    for route in routes:
        for method in route.methods:
            if method != "HEAD":
                told = _operation(method, route, schemas, model)
                paths.setdefault(route.path, {})[method.lower()] = told
    info = {"title": "Understudy", "version": VERSION, "description": ABOUT}
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    components = {"schemas": schemas.components}
    return msgspec.json.encode(
        {"openapi": "3.1.0", "info": info, **servers, "paths": paths, "components": components}
    )


def _operation(method: str, route: Route, schemas: Schemas, model: str) -> Schema:
    from app.serving.api.openapi import operations as known  # imports all families

    path = route.path
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _VARIABLE.findall(path)
    ]
    if query := known.QUERIES.get(f"{method} {path}"):
        its = schemas.properties(query).items()
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in its]
    content: Schema = {
        kind: {} for kind in known.MEDIA.get(path, (JSON,) if path in known.ANSWERS else known.ANY_MEDIA)
    }
    if JSON in content:
        content[JSON] = {"schema": schemas.of(known.ANSWERS.get(path, object))}
    errors = [Error, RoutingError, *known.ERRORS.get(path, ())]
    bad = {"description": "Why not.", "content": {JSON: {"schema": {"anyOf": [*map(schemas.of, errors)]}}}}
    status = "204" if path == "/fake_metrics" else "200"
    operation: Schema = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": (route.handle.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            status: {"description": "What was asked for.", **({"content": content} if content else {})},
            **{"4XX": bad, "5XX": bad},
        },
    }
    if method == "POST" and path in known.BODIES:
        kind, example = known.BODIES[path]
        named = {**example, "model": model} if "model" in example else example
        body = {JSON: {"schema": schemas.of(kind), "example": named}}
        operation["requestBody"] = {"required": path not in known.OPTIONAL, "content": body}
    return operation


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


class ChatMessage(Struct):
    """A message; what more it has depends on its role."""

    role: str
    content: str | list[JsonObject] | None = None


_DESCRIBED: Mapping[object, object] = {
    ("messages", list[JsonObject]): list[ChatMessage],
    ("messages", list[list[JsonObject]]): list[list[ChatMessage]],
}
"""Types of fields, by name and type, that the protocol only knows as objects."""
_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
}
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}


class Schemas:
    """Makes schemas; structs stand in `components`, by name, and are referred to."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> Schema:
        """Returns the schema of a type; the empty schema for a type that can be anything."""
        origin, args = get_origin(kind), get_args(kind)
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if origin is Annotated:
            return _limited(self.of(args[0]), args[1:])
        if origin is Literal:
            return {"enum": list(args)}
        if origin in (Union, UnionType):  # rendered JSON (Raw) is of one of the other kinds
            known = [arg for arg in args if arg not in (UnsetType, Raw)]
            if not known or any(arg in (object, Any) for arg in known):
                return {}
            return self.of(known[0]) if len(known) == 1 else {"anyOf": [self.of(arg) for arg in known]}
        own = origin or kind
        if not isinstance(own, type) or own in (object, Raw):
            return {}
        if issubclass(own, Struct):
            return self._reference(own)
        if issubclass(own, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1]) if args else {}}
        items = self.of(args[0]) if len(args) == 1 or args[1:] == (...,) else {}
        return {"type": "array", "items": items} if issubclass(own, Sequence) else {}

    def _reference(self, kind: type[Struct]) -> Schema:
        if kind not in self._names:
            taken = kind.__name__ in self.components
            name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}" if taken else kind.__name__
            self._names[kind] = name
            self.components[name] = {}  # a struct may hold itself
            required = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
            made: Schema = {"type": "object", "properties": self.properties(kind)}
            config = kind.__struct_config__
            if config.tag_field is not None:
                made["properties"][config.tag_field] = {"const": config.tag}
                required.append(config.tag_field)
            made["required"] = sorted(required)
            if about := " ".join((kind.__doc__ or "").partition("\n\n")[0].split()):
                made["description"] = about
            self.components[name] = made
        return {"$ref": REFERENCE + self._names[kind]}

    def properties(self, kind: type[Struct]) -> dict[str, Schema]:
        properties = {}
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            properties[name] = self.of(_DESCRIBED.get((name, field.type), field.type))
            if isinstance(field.default, str | int | float):
                properties[name]["default"] = field.default
        return properties


def _limited(schema: Schema, extras: tuple[Any, ...]) -> Schema:
    for meta in (extra for extra in extras if isinstance(extra, Meta)):
        limits = {keyword: getattr(meta, name) for name, keyword in _LIMITS.items()}
        if lengths := _LENGTHS.get(schema.get("type", "")):
            limits |= dict(zip(lengths, (meta.min_length, meta.max_length), strict=True))
        schema |= {keyword: limit for keyword, limit in limits.items() if limit is not None}
    return schema
