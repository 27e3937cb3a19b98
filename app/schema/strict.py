"""The narrow schemas that the reference simulator takes as tool parameters (simulator.md 7.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from app.schema.errors import SchemaError, inner_path
from app.schema.keywords import TYPES, is_count, is_number

SCALARS: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_number(value) and value == int(value),
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
}
KEYWORDS = frozenset(
    ["type", "description", "enum", "properties", "items", "required", "additionalProperties", "minItems"]
    + ["maxItems", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"]
    + ["maxLength", "pattern", "format", "title"]
)


def check_strict(schema: object, path: str = "parameters") -> None:
    """Raises SchemaError for a keyword, or a use of one, that is not in simulator.md 7.5.

    `schema` has been compiled, which checks all else and bounds its size.
    """
    waiting = [(schema, path)]
    while waiting:
        schema, path = waiting.pop()
        if not isinstance(schema, dict):
            raise SchemaError("must be an object", path)
        _check_one(schema, path)
        waiting += _below(schema, path)


def _check_one(schema: Mapping[str, object], path: str) -> None:
    for keyword in schema:
        if keyword not in KEYWORDS:
            raise SchemaError(f"the keyword {keyword!r} is not allowed in a strict tool schema", path)
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise SchemaError(f"must have a 'type', one of {', '.join(TYPES)}", path)
    if not isinstance(schema.get("additionalProperties", True), bool):
        raise SchemaError("must be true or false", f"{path}.additionalProperties")
    for keyword in ("minItems", "maxItems", "minLength", "maxLength"):
        if not is_count(schema.get(keyword, 0)):
            raise SchemaError("must be a whole number, 0 or more", f"{path}.{keyword}")
    for keyword, needs in (("items", "array"), ("properties", "object")):
        if kind == needs and keyword not in schema:
            raise SchemaError(f"a schema of type {needs} must have {keyword!r}", path)
    if "enum" in schema:
        _check_enum(schema["enum"], kind, f"{path}.enum")


def _check_enum(options: object, kind: str, path: str) -> None:
    fits = SCALARS.get(kind)
    if fits is None:
        raise SchemaError(f"is not allowed beside type {kind}", path)
    if not isinstance(options, list) or not all(map(fits, options)):
        raise SchemaError(f"must be a list of values of type {kind}", path)


def _below(schema: Mapping[str, object], path: str) -> Iterator[tuple[object, str]]:
    """Yields the schemas inside of `schema`, with their paths."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise SchemaError("must be an object of schemas", f"{path}.properties")
    for name, each in properties.items():
        yield each, inner_path(f"{path}.properties", name)
    items = schema.get("items")
    if isinstance(items, list):
        for index, each in enumerate(items):
            yield each, f"{path}.items.{index}"
    elif items is not None:
        yield items, f"{path}.items"
