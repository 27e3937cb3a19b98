"""A schema as read: rules for its keywords, minimal depths of its values, options of its enums.

Keywords of all drafts from 4 to 2020-12 are known. Older spellings (lists under ``items``, ``dependencies``,
true under ``exclusiveMinimum``) are read in every draft, because tools in the field mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from math import inf
from typing import TypeAlias, TypedDict, TypeGuard

from app.engine.forms.schema.bounds import SchemaError
from app.engine.forms.schema.patterns import Pattern

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_names(value: object) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


Rule = tuple[str, Callable[[object], bool]]

COUNT: Rule = (
    "must be a whole number, 0 or more",
    lambda value: is_number(value) and value >= 0 and value == int(value),
)
NUMBER: Rule = ("must be a number", is_number)
LIMIT: Rule = ("must be a number, or true or false", lambda value: isinstance(value, (int, float)))
FLAG: Rule = ("must be true or false", lambda value: isinstance(value, bool))
NAMES: Rule = ("must be a list of different strings", is_names)
TEXT: Rule = ("must be a string", lambda value: isinstance(value, str))
LIST: Rule = ("must be a list", lambda value: isinstance(value, list))
ANYTHING: Rule = ("", lambda value: True)

COUNTS = [limit + of for of in ("Length", "Items", "Contains", "Properties") for limit in ("min", "max")]
ANNOTATIONS = frozenset(
    ["title", "description", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"]
    + ["$comment", "$id", "$anchor", "$schema"]
)
"""Keywords that do not constrain the value; they are checked, then left out."""
RULES: Mapping[str, Rule] = {
    "type": (
        f"must be one of {', '.join(TYPES)}, or a list of different ones of them",
        lambda value: value in TYPES or is_names(value) and bool(value) and {*value} <= {*TYPES},
    ),
    "enum": LIST,
    "const": ANYTHING,
    "required": NAMES,
    "minimum": NUMBER,
    "maximum": NUMBER,
    "exclusiveMinimum": LIMIT,
    "exclusiveMaximum": LIMIT,
    "multipleOf": ("must be a number above 0", lambda value: is_number(value) and value > 0),
    **dict.fromkeys(COUNTS, COUNT),
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
    **dict.fromkeys(ANNOTATIONS, TEXT),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), FLAG),
}
"""Keywords that hold no schema, with the rule for their values."""

NOT_SUPPORTED = frozenset(["$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"])
"""Refused keywords: their meaning depends on how the rest of the schema is applied."""

SCHEMAS = frozenset(
    ["additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"]
    + ["propertyNames", "then"]
)
LISTS_OF_SCHEMAS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
MAPS_OF_SCHEMAS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Number: TypeAlias = int | float

ROUNDS = 40
"""Most passes over all schemas to find minimal depths; depths unknown by then count as infinite."""


def identity(value: JSON) -> Hashable:
    """Returns a hashable that is equal exactly for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(each)) for name, each in value.items()))
    return value


class EnumValues(list[JSON]):
    """The values of an ``enum``, or the value of a ``const``, with look-up by hash."""

    def __init__(self, values: Sequence[JSON]) -> None:
        super().__init__(values)
        self._identities = frozenset(map(identity, values))

    def has(self, value: JSON) -> bool:
        return identity(value) in self._identities


_NoNames = TypedDict(
    "_NoNames", {"$ref": str, "not": "Schema", "if": "Schema", "else": "Schema"}, total=False
)


class Keywords(_NoNames, total=False):
    """A schema as read, in Draft 2020-12 and without annotations; ``$ref`` is a name of a definition."""

    type: list[str]
    enum: EnumValues
    const: EnumValues
    multipleOf: Number
    minimum: Number
    maximum: Number
    exclusiveMinimum: Number
    exclusiveMaximum: Number
    minLength: Number
    maxLength: Number
    pattern: Pattern
    format: str
    items: Schema
    prefixItems: list[Schema]
    contains: Schema
    minContains: Number
    maxContains: Number
    minItems: Number
    maxItems: Number
    uniqueItems: bool
    properties: dict[str, Schema]
    patternProperties: dict[Pattern, Schema]
    additionalProperties: Schema
    propertyNames: Schema
    required: list[str]
    minProperties: Number
    maxProperties: Number
    dependentRequired: dict[str, list[str]]
    dependentSchemas: dict[str, Schema]
    allOf: list[Schema]
    anyOf: list[Schema]
    oneOf: list[Schema]
    then: Schema
    default: JSON
    examples: list[JSON]


Schema: TypeAlias = Keywords | bool


class Document:
    """A schema and the definitions of its references. Raises SchemaError for an endless reference."""

    def __init__(
        self, root: Schema, definitions: dict[str, Schema], schemas: list[Keywords], pattern_bytes: int
    ) -> None:
        self.root = root
        self.definitions = definitions
        self.pattern_bytes = pattern_bytes
        """Memory of the compiled patterns."""
        if definitions:
            graph = {id(schema): list(map(id, self._in_place(schema))) for schema in schemas}
            try:
                TopologicalSorter(graph).prepare()
            except CycleError:
                raise SchemaError("a reference leads back to itself without going into the value") from None
        self._min_depths: dict[int, float] = {id(schema): inf for schema in schemas}
        for _ in range(ROUNDS):
            schemas, before = schemas[::-1], list(self._min_depths.values())  # inner schemas first
            for schema in schemas:
                self._min_depths[id(schema)] = self._depth_of(schema)
            if before == list(self._min_depths.values()):
                break

    def min_depth(self, *schemas: Schema) -> float:
        """Returns a lower bound of the levels of a value that `schemas` accept; infinite if it cannot end."""
        depths = self._min_depths
        return max(
            (0 if it is True else depths.get(id(it), inf if it is False else 0) for it in schemas), default=0
        )

    def _depth_of(self, schema: Keywords) -> float:
        """Returns the minimal depth of a schema, from the depths of others known so far."""
        if "const" in schema or "enum" in schema:
            return 0
        types, nesting = schema.get("type", ["null"]), list[float]()
        if "object" in types:
            properties = schema.get("properties", {})
            needed = [properties.get(name, True) for name in schema.get("required", ())]
            nesting.append(1 + self.min_depth(*needed))
        if "array" in types:
            fewest, prefix = int(schema.get("minItems", 0)), schema.get("prefixItems", [])
            more = [schema.get("items", True)] if fewest > len(prefix) else []
            nesting.append(1 + self.min_depth(*prefix[:fewest], *more))
        referred = [self.definitions[schema["$ref"]]] if "$ref" in schema else []
        return max(
            min(nesting) if len(nesting) == len(types) else 0,
            self.min_depth(*schema.get("allOf", ()), *referred),
            *(
                min(map(self.min_depth, branches))
                for branches in (schema.get("anyOf"), schema.get("oneOf"))
                if branches is not None
            ),
        )

    def _in_place(self, schema: Keywords) -> list[Schema]:
        """Returns the schemas that `schema` applies to its own value."""
        one = [schema.get("not", True), schema.get("if", True)]
        one += [schema.get("then", True), schema.get("else", True)]
        of_lists = (schema.get("allOf", ()), schema.get("anyOf", ()), schema.get("oneOf", ()))
        referred = [self.definitions[schema["$ref"]]] if "$ref" in schema else []
        return [*one, *chain(*of_lists), *schema.get("dependentSchemas", {}).values(), *referred]
