"""A schema that has been read: what its keywords hold, and the values of its enums."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias, TypedDict, cast

from app.clock.pause import Slices
from app.schema.errors import PART, STEPS_A_PART, SchemaError
from app.schema.keywords import BACKWARDS
from app.schema.patterns import Pattern

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Number: TypeAlias = int | float

NODE_BYTES = 140
"""Memory of what is noted about a schema elsewhere: its place in lists, its height; measured."""
IDENTITY_FACTOR = 2
"""Memory of arrays and objects with their identities, to that without: measured."""


def identity(value: JSON, slices: Slices) -> Hashable:
    """Something hashable that is equal for equal JSON values, and only for those.

    1 and 1.0 are one number, true is none, and the names of an object have no order.
    """
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        slices.spend()
        return ("array", tuple(identities(value, slices)))
    if isinstance(value, dict):
        slices.spend()
        return ("object", frozenset(zip(value, identities(list(value.values()), slices), strict=True)))
    return value


def identities(values: Sequence[JSON], slices: Slices) -> Iterable[Hashable]:
    """The identity of each value."""
    one = partial(identity, slices=slices)
    if len(values) <= PART:
        return map(one, values)
    return [each for part in slices.parts(values, PART, STEPS_A_PART) for each in map(one, part)]


def held_bytes(value: JSON, slices: Slices) -> int:
    """Memory of a JSON value with all that is in it."""
    total, waiting = sys.getsizeof(value), [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (dict, list)):
            members = each if isinstance(each, list) else [*each, *each.values()]
            for part in slices.parts(members, PART, 1 + STEPS_A_PART):
                total += sum(map(sys.getsizeof, part))
                waiting += [member for member in part if isinstance(member, (dict, list))]
    return total


class Options(list[JSON]):
    """The values of an ``enum`` (or the one of a ``const``), quick to be looked for."""

    def __init__(self, values: Sequence[JSON], slices: Slices) -> None:
        super().__init__(values)
        self._identities = frozenset(identities(values, slices))
        self._slices = slices

    @property
    def size_bytes(self) -> int:
        """Memory of the values, and of their identities: tuples and sets in the shape of the values."""
        values = held_bytes(list(self), self._slices)
        scalars = not any(isinstance(each, (dict, list)) for each in self)
        return sys.getsizeof(self._identities) + values * (1 if scalars else IDENTITY_FACTOR)

    def has(self, value: JSON) -> bool:
        """True when `value` is equal to one of the options."""
        return identity(value, self._slices) in self._identities

    def among(self, values: Sequence[JSON]) -> list[JSON]:
        """Those of `values` that are options."""
        parts = self._slices.parts(values, PART, STEPS_A_PART)
        return [value for part in parts for value in part if self.has(value)]


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


def schema_bytes(schema: Keywords, slices: Slices) -> int:
    """Memory of a schema, without the schemas inside of it."""
    slices.spend()
    total = NODE_BYTES + sys.getsizeof(schema)
    for keyword, value in schema.items():
        if isinstance(value, (Options, Pattern)):
            total += value.size_bytes
        elif isinstance(value, dict):
            names = (name.size_bytes if isinstance(name, Pattern) else sys.getsizeof(name) for name in value)
            total += sys.getsizeof(value) + sum(names)
            if keyword == "dependentRequired":
                total += sum(held_bytes(each, slices) for each in value.values())
        elif keyword in ("type", "required", "examples", "default"):
            total += held_bytes(cast(JSON, value), slices)
        elif not isinstance(value, bool):
            total += sys.getsizeof(value)
    return total


class Document:
    """A schema, `root`, and the `definitions` that its references name.

    `schemas` lists every schema in it that is an object, each once; `size_bytes` is what they hold. Raises
    SchemaError for one that cannot be judged.
    """

    def __init__(
        self, root: Schema, definitions: dict[str, Schema], schemas: list[Keywords], slices: Slices
    ) -> None:
        self.root = root
        self.definitions = definitions
        self.schemas = schemas
        self.size_bytes = sys.getsizeof(definitions) + sum(schema_bytes(each, slices) for each in schemas)
        keywords: set[str] = set().union(*schemas)
        self.reads_formats_backwards = "format" in keywords and not keywords.isdisjoint(BACKWARDS)
        """True when a value may satisfy the schema only because it lacks a ``format``."""
        if definitions:
            self._refuse_endless(slices)

    def _refuse_endless(self, slices: Slices) -> None:
        """Raise SchemaError if a schema is applied to its own value again and again."""
        graph: dict[int, list[int]] = {}
        for schema in self.schemas:
            slices.spend()
            if inner := [id(each) for each in self._in_place(schema)]:
                graph[id(schema)] = inner
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            raise SchemaError("a reference leads back to itself without going into the value") from None

    def _in_place(self, schema: Keywords) -> Iterator[Schema]:
        """The schemas that `schema` applies to the very value it speaks of."""
        for schemas in (schema.get("allOf"), schema.get("anyOf"), schema.get("oneOf")):
            yield from schemas or ()
        for one in (schema.get("not"), schema.get("if"), schema.get("then"), schema.get("else")):
            if one is not None:
                yield one
        yield from schema.get("dependentSchemas", {}).values()
        if "$ref" in schema:
            yield self.definitions[schema["$ref"]]
