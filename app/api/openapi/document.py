"""The OpenAPI document of the routes that are served: schemas from structs, operations from their table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from app.api.openapi.operations import (
    JSON,
    OPERATIONS,
    REFINEMENTS,
    TEXT,
    UNKNOWN,
    Error,
    Operation,
    RoutingError,
)
from app.api.openapi.schemas import Schemas
from app.http.route import Route

ABOUT = (
    "Plays a vLLM server: its API, its metrics and its timing, without a model. Bodies are taken as "
    "leniently as vLLM takes them; rules that no schema can say are told by a 400."
)
_VARIABLE = re.compile(r"\{(\w+)\}")
Json = dict[str, Any]


def document(routes: Iterable[Route], version: str, root_path: str, model: str) -> bytes:
    """The document, as JSON. Examples name `model` where they have to name one."""
    described = [
        (route, method, OPERATIONS.get((method, route.path), UNKNOWN))
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
        "parameters": [*map(_path_parameter, _VARIABLE.findall(route.path)), *_query(told)],
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


def _query(told: Operation) -> list[Json]:
    return [{"name": name, "in": "query", "schema": schema} for name, schema in told.query.items()]


def _responses(told: Operation, schemas: Schemas) -> Json:
    content: Json = {} if told.answer is None else {JSON: {"schema": schemas.of(told.answer)}}
    for kind in told.media:
        content[kind] = {"schema": {"type": "string"}} if kind == TEXT else {}
    good: Json = {"description": "What was asked for."}
    kinds = dict.fromkeys((told.error, Error, RoutingError))
    error = {"anyOf": [schemas.of(kind) for kind in kinds]}
    bad = {"description": "Why not.", "content": {JSON: {"schema": error}}}
    return {str(told.status): good | ({"content": content} if content else {}), "4XX": bad, "5XX": bad}
