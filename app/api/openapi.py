"""GET /openapi.json: every route that is served, with the schema of its body, made from the wire structs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from inspect import getdoc
from typing import TypeAlias

import msgspec

from app.clock.pause import call_off_hub
from app.http.context import RequestContext
from app.http.response import Response
from app.http.route import Route
from app.protocol.coercion import JsonObject

REFERENCE = "#/components/schemas/{name}"
VARIABLE = re.compile(r"\{(\w+)\}")
Schemas: TypeAlias = dict[type, JsonObject]

ANSWERS: dict[str, JsonObject] = {
    "200": {"description": "What was asked for: JSON, text, or a stream of events."},
    "4XX": {"description": "The request is wrong, or cannot be served now."},
    "5XX": {"description": "It was asked for, or the server takes no requests now."},
}


def routes(served: Callable[[], Iterable[Route]], version: str) -> list[Route]:
    """`served` tells all routes of the application, `version` is that of vLLM."""
    made: list[bytes] = []

    def openapi(context: RequestContext) -> Response:
        """This document."""
        if not made:
            made.append(call_off_hub(lambda: msgspec.json.encode(document(served(), version))))
        response = Response(made[0], content_type="application/json")
        if context.method == "HEAD":
            response.without_body()
        return response

    return [Route(methods=("GET", "HEAD"), path="/openapi.json", handle=openapi)]


def document(served: Iterable[Route], version: str) -> JsonObject:
    """The description of `served` by OpenAPI 3.1."""
    listed = list(served)
    kinds = list(dict.fromkeys(kind for route in listed for kind in route.bodies))
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_anything, ref_template=REFERENCE)
    by_kind: Schemas = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, JsonObject] = {}
    for route in listed:
        operations = paths.setdefault(route.path, {})
        for method in route.methods:
            operations[method.lower()] = _operation(route, method, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "vLLM, as Understudy plays it", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, method: str, schemas: Schemas) -> JsonObject:
    name = re.sub(r"\W+", "_", f"{method.lower()}{route.path}").strip("_")
    operation: JsonObject = {"operationId": name, "responses": ANSWERS}
    if told := getdoc(route.handle):
        operation["summary"] = told.partition("\n")[0]
    if variables := VARIABLE.findall(route.path):
        operation["parameters"] = [
            {"name": variable, "in": "path", "required": True, "schema": {"type": "string"}}
            for variable in variables
        ]
    if route.bodies:
        content = {"application/json": {"schema": _any_of([schemas[kind] for kind in route.bodies])}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _any_of(schemas: Sequence[JsonObject]) -> JsonObject:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _anything(kind: type) -> JsonObject:
    """Values that are looked at only where they are used."""
    return {"description": "Any JSON."}
