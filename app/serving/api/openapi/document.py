"""The OpenAPI document of the routes that are served: schemas from structs, operations from their table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct, UnsetType

from app.serving.api.openapi.operations import (
    JSON,
    OPERATIONS,
    REFINEMENTS,
    TEXT,
    UNKNOWN,
    Error,
    Operation,
    RoutingError,
)
from app.serving.http.route import Route

Schema = dict[str, Any]
Refinements = Mapping[tuple[type, str], Schema]

REFERENCE = "#/components/schemas/"
_PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
_LIMITS: Mapping[str, str] = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
}
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}


class Schemas:
    """Makes schemas; structs stand in `components`, by name, and are referred to.

    `refinements` add to the schemas of fields.
    """

    def __init__(self, refinements: Refinements) -> None:
        self.components: dict[str, Schema] = {}
        self._names: dict[type, str] = {}
        self._refinements = refinements

    def of(self, kind: Any) -> Schema:
        """Returns the schema of a type; the empty schema for a type that can be anything."""
        origin, args = get_origin(kind), get_args(kind)
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if origin is Annotated:
            return _limited(self.of(args[0]), args[1:])
        if origin is Literal:
            return {"enum": list(args)}
        if origin in (Union, UnionType):
            return self._union([arg for arg in args if arg is not UnsetType])
        if isinstance(kind, type) and (issubclass(kind, Struct) or is_typeddict(kind)):
            return self._reference(kind)
        return self._container(origin or kind, args)

    def _union(self, kinds: Sequence[Any]) -> Schema:
        """Leaves out `Raw`: rendered JSON is of one of the other kinds."""
        known = [kind for kind in kinds if kind is not Raw]
        if not known or any(kind in (object, Any) for kind in known):
            return {}
        return self.of(known[0]) if len(known) == 1 else {"anyOf": [self.of(kind) for kind in known]}

    def _container(self, kind: Any, args: tuple[Any, ...]) -> Schema:
        if not isinstance(kind, type) or kind in (object, Raw):
            return {}
        if issubclass(kind, tuple) and args and args[-1] is not Ellipsis:
            items = [self.of(arg) for arg in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if issubclass(kind, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1]) if args else {}}
        if issubclass(kind, Sequence):
            return {"type": "array", "items": self.of(args[0]) if args else {}}
        return {}

    def _reference(self, kind: type) -> Schema:
        if kind not in self._names:
            taken = kind.__name__ in self.components
            name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}" if taken else kind.__name__
            self._names[kind] = name
            self.components[name] = {}  # a struct may hold itself
            self.components[name] = self._struct(kind) if issubclass(kind, Struct) else self._dict(kind)
        return {"$ref": REFERENCE + self._names[kind]}

    def _struct(self, kind: type[Struct]) -> Schema:
        properties, required = {}, []
        at = kind.__struct_config__
        if at.tag_field is not None:
            properties[at.tag_field] = {"const": at.tag}
            required.append(at.tag_field)
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            properties[name] = {**self.of(field.type), **self._refinements.get((kind, name), {})}
            if field.required:
                required.append(name)
            elif field.default is not NODEFAULT and _is_plain(field.default):
                properties[name]["default"] = field.default
        return _object(kind, properties, required)

    def _dict(self, kind: Any) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        return _object(kind, {name: self.of(hint) for name, hint in hints.items()}, [*kind.__required_keys__])


def _object(kind: type, properties: Schema, required: list[str]) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    if required:
        made["required"] = sorted(required)
    about = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    return made | ({"description": about} if about else {})


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _limited(schema: Schema, extras: tuple[Any, ...]) -> Schema:
    for meta in (extra for extra in extras if isinstance(extra, Meta)):
        for name, keyword in _LIMITS.items():
            if (limit := getattr(meta, name)) is not None:
                schema[keyword] = limit
        least, most = _LENGTHS.get(schema.get("type", ""), ("", ""))
        for keyword, length in ((least, meta.min_length), (most, meta.max_length)):
            if keyword and length is not None:
                schema[keyword] = length
    return schema


ABOUT = (
    "Plays a vLLM server: its API, its metrics and its timing, without a model. Bodies are taken as "
    "leniently as vLLM takes them; rules that no schema can say are told by a 400."
)
_VARIABLE = re.compile(r"\{(\w+)\}")
Json = dict[str, Any]


def document(routes: Iterable[Route], version: str, root_path: str, model: str) -> bytes:
    """Returns the document as JSON. Examples name `model` where they need a model."""
    described = [
        (route, method, OPERATIONS.get(f"{method} {route.path}", UNKNOWN))
        for route in routes
        for method in route.methods
        if method != "HEAD"
    ]
    schemas = Schemas(REFINEMENTS)
    paths: dict[str, Json] = {}
    for route, method, told in described:
        paths.setdefault(route.path, {})[method.lower()] = _operation(route, method, told, schemas, model)
    info = {"title": "Understudy", "version": version, "description": ABOUT}
    made: Json = {"openapi": "3.1.0", "info": info}
    if root_path:
        made["servers"] = [{"url": root_path}]
    return msgspec.json.encode(made | {"paths": paths, "components": {"schemas": schemas.components}})


def _operation(route: Route, method: str, told: Operation, schemas: Schemas, model: str) -> Json:
    operation: Json = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path.lower())}".rstrip("_"),
        "summary": (route.handle.__doc__ or "").partition("\n")[0],
        "parameters": [*map(_path_parameter, _VARIABLE.findall(route.path)), *_query(told, schemas)],
        "responses": _responses(told, schemas),
    }
    if told.body is not None:
        content: Json = {"schema": schemas.of(told.body)}
        if told.example is not None:
            named = {"model": model} if "model" in told.example else {}
            content["example"] = {**told.example, **named}
        operation["requestBody"] = {"required": told.needs_body, "content": {JSON: content}}
    return operation


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query(told: Operation, schemas: Schemas) -> list[Json]:
    query = told.query
    if not isinstance(query, Mapping):
        query = {field.encode_name: field.type for field in msgspec.structs.fields(query)}
    return [{"name": name, "in": "query", "schema": schemas.of(kind)} for name, kind in query.items()]


def _responses(told: Operation, schemas: Schemas) -> Json:
    content: Json = {} if told.answer is None else {JSON: {"schema": schemas.of(told.answer)}}
    for kind in told.media:
        content[kind] = {"schema": {"type": "string"}} if kind == TEXT else {}
    good: Json = {"description": "What was asked for."}
    kinds = dict.fromkeys((told.error, Error, RoutingError))
    error = {"anyOf": [schemas.of(kind) for kind in kinds]}
    bad = {"description": "Why not.", "content": {JSON: {"schema": error}}}
    return {str(told.status): good | ({"content": content} if content else {}), "4XX": bad, "5XX": bad}
