"""The keywords of JSON Schema: what each may hold, in all drafts from 4 to 2020-12.

Older spellings (lists under ``items``, ``dependencies``, true under ``exclusiveMinimum``) are read
whatever draft is named, because tools in the field mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a JSON number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int | float]:
    """True for a whole number of 0 or more; 2.0 is one, too."""
    return is_number(value) and value >= 0 and value == int(value)


def is_names(value: object) -> TypeGuard[list[str]]:
    """True for a list of different strings."""
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def is_type(value: object) -> bool:
    """True for the name of a type, or a list of different ones."""
    if isinstance(value, str):
        return value in TYPES
    return is_names(value) and bool(value) and all(name in TYPES for name in value)


Rule = tuple[str, Callable[[object], bool]]

COUNT: Rule = ("must be a whole number, 0 or more", is_count)
NUMBER: Rule = ("must be a number", is_number)
LIMIT: Rule = ("must be a number, or true or false", lambda value: isinstance(value, (int, float)))
FLAG: Rule = ("must be true or false", lambda value: isinstance(value, bool))
NAMES: Rule = ("must be a list of different strings", is_names)
TEXT: Rule = ("must be a string", lambda value: isinstance(value, str))
LIST: Rule = ("must be a list", lambda value: isinstance(value, list))
ANYTHING: Rule = ("", lambda value: True)

PLAIN: Mapping[str, Rule] = {
    "type": (f"must be one of {', '.join(TYPES)}, or a list of different ones of them", is_type),
    "enum": LIST,
    "const": ANYTHING,
    "required": NAMES,
    "minimum": NUMBER,
    "maximum": NUMBER,
    "exclusiveMinimum": LIMIT,
    "exclusiveMaximum": LIMIT,
    "multipleOf": ("must be a number above 0", lambda value: is_number(value) and value > 0),
    "minLength": COUNT,
    "maxLength": COUNT,
    "minItems": COUNT,
    "maxItems": COUNT,
    "minContains": COUNT,
    "maxContains": COUNT,
    "minProperties": COUNT,
    "maxProperties": COUNT,
    "uniqueItems": FLAG,
    "dependentRequired": (
        "must be an object of lists of different strings",
        lambda value: isinstance(value, dict) and all(map(is_names, value.values())),
    ),
    "format": TEXT,
    "pattern": TEXT,
    "default": ANYTHING,
    "examples": LIST,
    "$ref": TEXT,
}
"""Keywords that hold no schema, with what is said of a wrong value."""

ANNOTATIONS: Mapping[str, Rule] = {
    "title": TEXT,
    "description": TEXT,
    "deprecated": FLAG,
    "readOnly": FLAG,
    "writeOnly": FLAG,
    "contentEncoding": TEXT,
    "contentMediaType": TEXT,
    "$comment": TEXT,
    "$id": TEXT,
    "$anchor": TEXT,
    "$schema": TEXT,
}
"""Keywords that say nothing of the value; they are looked at, and left out."""

NOT_SUPPORTED = frozenset(["$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"])
"""Keywords whose meaning depends on how the rest of the schema is applied; a schema with one is refused."""

SCHEMAS = frozenset(
    ["additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"]
    + ["propertyNames", "then"]
)
"""Keywords that hold one schema."""
LISTS_OF_SCHEMAS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
MAPS_OF_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
BACKWARDS = ("not", "if", "oneOf", "maxContains")
"""Keywords under which a schema that is not satisfied may be what is wanted."""
