"""A schema that has been read: what its keywords hold, how deep its values are, the values of its enums."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import TypeAlias, TypedDict

from app.schema.errors import SchemaError
from app.schema.keywords import BACKWARDS
from app.schema.patterns import Pattern

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Number: TypeAlias = int | float

ROUNDS = 40
"""Passes over all schemas that look for minimal depths; what is unknown then counts as endless."""


def identity(value: JSON) -> Hashable:
    """Returns a hashable that is equal for equal JSON values, and only for those.

    1 and 1.0 are one number, true is none, and the names of an object have no order.
    """
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(each)) for name, each in value.items()))
    return value


class Options(list[JSON]):
    """The values of an ``enum``, or the one of a ``const``, found by hash."""

    def __init__(self, values: Sequence[JSON]) -> None:
        super().__init__(values)
        self._identities = frozenset(map(identity, values))

    def has(self, value: JSON) -> bool:
        """Returns True when `value` is equal to one of the options."""
        return identity(value) in self._identities


_NoNames = TypedDict(
    "_NoNames", {"$ref": str, "not": "Schema", "if": "Schema", "else": "Schema"}, total=False
)


class Keywords(_NoNames, total=False):
    """A schema that is an object, in the words of Draft 2020-12; what says nothing of the value is left out.

    ``$ref`` is a name among the definitions of the `Document`.
    """

    type: list[str]
    enum: Options
    const: Options
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
    """A schema, `root`, and the `definitions` that its references name; `schemas` are all objects in it.

    Raises SchemaError for a schema that is applied to its own value again and again.
    """

    def __init__(
        self, root: Schema, definitions: dict[str, Schema], schemas: list[Keywords], pattern_bytes: int
    ) -> None:
        self.root = root
        self.definitions = definitions
        self.pattern_bytes = pattern_bytes
        """Memory of the compiled patterns."""
        keywords: set[str] = set().union(*schemas)
        self.reads_formats_backwards = "format" in keywords and not keywords.isdisjoint(BACKWARDS)
        """True when a value may satisfy the schema only because it lacks a ``format``."""
        if definitions:
            self._refuse_endless(schemas)
        self._min_depths: dict[int, float] = {id(schema): inf for schema in schemas}
        for _ in range(ROUNDS):
            schemas = schemas[::-1]  # what is inside of a schema comes behind it
            if not self._find_depths(schemas):
                break

    def min_depth(self, *schemas: Schema) -> float:
        """Returns how many levels of nesting a value of all `schemas` has at least.

        Infinite for a value that could not end, 0 for schemas that are not of this document. A lower bound:
        keywords of several schemas are not held against each other.
        """
        return max((self._depth_of(schema) for schema in schemas), default=0)

    def _depth_of(self, schema: Schema) -> float:
        if isinstance(schema, bool):
            return 0 if schema else inf
        return self._min_depths.get(id(schema), 0)

    def _find_depths(self, schemas: Iterable[Keywords]) -> bool:
        """Computes minimal depths from those known; returns True when one has changed."""
        changed = False
        for schema in schemas:
            depth = self._min_depth(schema)
            if depth != self._min_depths[id(schema)]:
                self._min_depths[id(schema)] = depth
                changed = True
        return changed

    def _min_depth(self, schema: Keywords) -> float:
        if "const" in schema or "enum" in schema:
            return 0
        depth = max(self._nesting(schema), self.min_depth(*schema.get("allOf", ())))
        if "$ref" in schema:
            depth = max(depth, self.min_depth(self.definitions[schema["$ref"]]))
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if branches is not None:
                depth = max(depth, min(map(self.min_depth, branches)))
        return depth

    def _nesting(self, schema: Keywords) -> float:
        types = schema.get("type", ["null"])
        depths: list[float] = []
        if "object" in types:
            properties = schema.get("properties", {})
            needed = [properties.get(name, True) for name in schema.get("required", ())]
            depths.append(1 + self.min_depth(*needed))
        if "array" in types:
            fewest, prefix = int(schema.get("minItems", 0)), schema.get("prefixItems", [])
            more = [schema.get("items", True)] if fewest > len(prefix) else []
            depths.append(1 + self.min_depth(*prefix[:fewest], *more))
        return min(depths) if len(depths) == len(types) else 0

    def _refuse_endless(self, schemas: Iterable[Keywords]) -> None:
        graph = {id(schema): [id(inner) for inner in self._in_place(schema)] for schema in schemas}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            raise SchemaError("a reference leads back to itself without going into the value") from None

    def _in_place(self, schema: Keywords) -> Iterator[Schema]:
        """Yields the schemas that `schema` applies to its own value."""
        for schemas in (schema.get("allOf"), schema.get("anyOf"), schema.get("oneOf")):
            yield from schemas or ()
        for one in (schema.get("not"), schema.get("if"), schema.get("then"), schema.get("else")):
            if one is not None:
                yield one
        yield from schema.get("dependentSchemas", {}).values()
        if "$ref" in schema:
            yield self.definitions[schema["$ref"]]
