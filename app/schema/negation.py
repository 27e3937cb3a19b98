"""The ways in which a value can fail a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.schema.keywords import TYPES

NUMBER, STRING, ARRAY, OBJECT = ["number"], ["string"], ["array"], ["object"]
Way = dict[str, Any]

SIMPLE: Mapping[str, Callable[[Any], Way | None]] = {
    "type": lambda names: _other_types(names),
    "minimum": lambda number: {"type": NUMBER, "exclusiveMaximum": number},
    "maximum": lambda number: {"type": NUMBER, "exclusiveMinimum": number},
    "exclusiveMinimum": lambda number: {"type": NUMBER, "maximum": number},
    "exclusiveMaximum": lambda number: {"type": NUMBER, "minimum": number},
    "multipleOf": lambda number: {"type": NUMBER},
    "minLength": lambda count: _below("string", "maxLength", count),
    "maxLength": lambda count: {"type": STRING, "minLength": int(count) + 1},
    "minItems": lambda count: _below("array", "maxItems", count),
    "maxItems": lambda count: {"type": ARRAY, "minItems": int(count) + 1},
    "minProperties": lambda count: _below("object", "maxProperties", count),
    "maxProperties": lambda count: {"type": OBJECT, "minProperties": int(count) + 1},
    "pattern": lambda pattern: {"type": STRING},
    "format": lambda name: {"type": STRING},
    "enum": lambda options: {},
    "const": lambda value: {},
    "items": lambda schema: {"type": ARRAY, "minItems": 1, "contains": {"not": schema}},
    "propertyNames": lambda schema: {"type": OBJECT, "minProperties": 1},
    "additionalProperties": lambda schema: {"type": OBJECT, "minProperties": 1},
    "unevaluatedProperties": lambda schema: {"type": OBJECT, "minProperties": 1},
    "contains": lambda schema: {"type": ARRAY, "items": {"not": schema}},
    "uniqueItems": lambda wanted: {"type": ARRAY, "minItems": 2} if wanted else None,
    "not": lambda schema: {"allOf": [schema]},
    "anyOf": lambda schemas: {"allOf": [{"not": schema} for schema in schemas]},
    "oneOf": lambda schemas: {"allOf": [{"not": schema} for schema in schemas]},
}
"""One way to fail each keyword; the empty way leaves it to chance and to the judge."""


def ways_to_fail(schema: Mapping[str, Any], target: Callable[[str], Any]) -> Iterator[Way]:
    """Schemas whose values are likely to fail `schema`; each fails another of its keywords.

    `target` finds what a ``$ref`` names.
    """
    for keyword, value in schema.items():
        if keyword in SIMPLE:
            way = SIMPLE[keyword](value)
            if way is not None:
                yield way
        elif keyword == "$ref":
            yield {"not": target(value)}
        elif keyword == "allOf":
            yield from ({"not": each} for each in value)
        elif keyword == "required":
            yield from ({"type": OBJECT, "properties": {name: False}} for name in value)
        elif keyword == "properties":
            for name, each in value.items():
                yield {"type": OBJECT, "required": [name], "properties": {name: {"not": each}}}
        elif keyword == "prefixItems":
            for index, each in enumerate(value):
                yield {"type": ARRAY, "minItems": index + 1, "prefixItems": [*[True] * index, {"not": each}]}
        elif keyword == "then" and "if" in schema:
            yield {"allOf": [schema["if"], {"not": value}]}
        elif keyword == "else" and "if" in schema:
            yield {"allOf": [{"not": schema["if"]}, {"not": value}]}
        elif keyword == "dependentRequired":
            for name, others in value.items():
                for other in others:
                    yield {"type": OBJECT, "required": [name], "properties": {other: False}}


def _other_types(names: list[str]) -> Way:
    excluded = set(names)
    others = [name for name in TYPES if name not in excluded]
    if "number" in excluded:
        others = [name for name in others if name != "integer"]
    return {"type": others}


def _below(type_name: str, keyword: str, count: float) -> Way | None:
    return {"type": [type_name], keyword: int(count) - 1} if count >= 1 else None
