"""Reads a JSON Schema: checks keywords, resolves references, rewrites older drafts in Draft
2020-12.

Keywords of all drafts from 4 to 2020-12 are known. Older spellings (lists under ``items``,
``dependencies``, true under ``exclusiveMinimum``) are read in every draft, because tools in the
field mix them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from math import inf
from typing import TypeAlias, TypedDict, TypeGuard, cast

from referencing import Registry, Specification
from referencing._core import Resolved, Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from app.engine.forms.schema.bounds import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMAS,
    TYPES,
    SchemaError,
    inner_path,
)
from app.engine.forms.schema.patterns import Pattern


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

COUNTS = [
    limit + of for of in ("Length", "Items", "Contains", "Properties") for limit in ("min", "max")
]
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentEncoding",
        "contentMediaType",
    ]
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

NOT_SUPPORTED = frozenset(
    ["$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"]
)
"""Refused keywords: their meaning depends on how the rest of the schema is applied."""

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Number: TypeAlias = int | float

ROUNDS = 40
"""Most passes over all schemas to find minimal depths; depths unknown by then count as infinite."""


def identity(value: JSON) -> Hashable:
    """Returns a hashable that is equal exactly for equal JSON values:

    1 and 1.0 are, 1 and true are not.
    """
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
    """A schema as read, in Draft 2020-12 and without annotations; ``$ref`` is a name of a
    definition.
    """

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
    """A schema and the definitions of its references.

    Raises SchemaError for an endless reference.
    """

    def __init__(
        self,
        root: Schema,
        definitions: dict[str, Schema],
        schemas: list[Keywords],
        pattern_bytes: int,
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
                raise SchemaError(
                    "a reference leads back to itself without going into the value"
                ) from None
        self._min_depths: dict[int, float] = {id(schema): inf for schema in schemas}
        for _ in range(ROUNDS):
            schemas, before = schemas[::-1], list(self._min_depths.values())  # inner schemas first
            for schema in schemas:
                self._min_depths[id(schema)] = self._depth_of(schema)
            if before == list(self._min_depths.values()):
                break
        self.endless = frozenset(place for place, depth in self._min_depths.items() if depth == inf)
        """The `id` of each schema without a value that can end."""

    def min_depth(self, *schemas: Schema) -> float:
        """Returns a lower bound of the levels of a value that `schemas` accept; infinite if it
        cannot end.
        """
        depths = self._min_depths
        known = [depths.get(id(it), inf if it is False else 0) for it in schemas]
        return max(known, default=0)

    def _depth_of(self, schema: Keywords) -> float:
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
        branches = [each for each in (schema.get("anyOf"), schema.get("oneOf")) if each is not None]
        return max(
            min(nesting) if len(nesting) == len(types) else 0,
            self.min_depth(*schema.get("allOf", ()), *self._referred(schema)),
            *(min(map(self.min_depth, options)) for options in branches),
        )

    def _in_place(self, schema: Keywords) -> list[Schema]:
        """Returns the schemas that `schema` applies to its own value."""
        one = [schema[key] for key in ("not", "if", "then", "else") if key in schema]
        several = (schema.get("allOf", ()), schema.get("anyOf", ()), schema.get("oneOf", ()))
        dependent = schema.get("dependentSchemas", {}).values()
        return [*one, *chain(*several), *dependent, *self._referred(schema)]

    def _referred(self, schema: Keywords) -> list[Schema]:
        return [self.definitions[schema["$ref"]]] if "$ref" in schema else []


LONGEST = 2000
"""Characters of the longest ``$ref`` that is resolved."""
DEEPEST = 80
"""Most levels of nested schemas."""
MOST_SCHEMAS = 5000
"""Most schemas of one document."""
MOST_PATTERNS = 20_000
"""Most characters of all patterns of a document, as compiling takes time."""
PATTERN_TEXT = 50
"""Characters that each pattern counts beside its own."""
NAMING = re.compile(rb'"(?:\$?id|\$anchor|\$dynamicAnchor)"')
"""Keywords that name a schema for references, which are else JSON pointers."""
EMPTY: Registry[JSON] = Registry()
REFERENCE_ALONE = ("draft-04", "draft-06", "draft-07")
"""Drafts that ignore keywords beside a reference."""


class Reader:
    """Reads the schema in the JSON `text`; `lenient` leaves out wrong keywords.

    Raises SchemaError.
    """

    def __init__(self, text: bytes, lenient: bool) -> None:
        self._root: JSON = json.loads(text)
        dialect = _dialect(self._root)
        specification = specification_with(dialect, default=DRAFT202012)
        self._specification: Specification[JSON] = specification
        self._lenient = lenient
        self._has_references = b'"$ref"' in text
        self._has_names = NAMING.search(text) is not None
        self._reference_alone = any(draft in dialect for draft in REFERENCE_ALONE)
        self._schemas: list[Keywords] = []
        self._read: dict[int, Schema] = {}
        """Read schemas by the `id` of the raw ones."""
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Resolved[JSON], str]] = []
        self._pattern_text = self._pattern_bytes = 0

    def document(self) -> Document:
        root, registry = self._specification.create_resource(self._root), EMPTY
        uri = root.id() or ""
        if self._has_references:
            registry = registry.with_resources([("", root), (uri, root)])
        try:
            if self._has_references and self._has_names:
                registry = registry.crawl()
        except (AttributeError, TypeError, ValueError):  # parts that are no schemas
            self._has_names = False
        schema = self._schema(self._root, registry.resolver(uri), "", 0)
        definitions: dict[str, Schema] = {}
        for name, target, path in self._waiting:  # the list grows meanwhile
            if (read := self._read.get(id(target.contents))) is None:
                read = self._schema(target.contents, target.resolver, path, 0)
            definitions[name] = read
        return Document(schema, definitions, self._schemas, self._pattern_bytes)

    def _schema(self, raw: JSON, resolver: Resolver[JSON], path: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return raw
        if depth > DEEPEST or len(self._schemas) >= MOST_SCHEMAS:
            raise SchemaError("the schema is too deep or too large", path)
        if not isinstance(raw, dict):
            if self._lenient:
                return True
            raise SchemaError("a schema must be an object, or true or false", path)
        if (
            depth
            and isinstance(own := raw.get("$id", raw.get("id")), str)
            and own[:1] not in ("", "#")
        ):
            with suppress(ValueError):  # not a URI
                resolver = resolver.in_subresource(self._specification.create_resource(raw))
        schema: dict[str, object] = {}
        read = cast(Keywords, schema)
        self._schemas.append(read)
        self._read[id(raw)] = read
        for keyword, value in raw.items():
            try:
                self._take(schema, keyword, value, resolver, inner_path(path, keyword), depth + 1)
            except SchemaError:
                if not self._lenient:
                    raise
        _modernise(schema, self._reference_alone)
        return read

    def _take(
        self,
        schema: dict[str, object],
        keyword: str,
        value: JSON,
        resolver: Resolver[JSON],
        path: str,
        depth: int,
    ) -> None:
        if keyword in LISTS_OF_SCHEMAS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list) or not value:
                raise SchemaError("must be a list of at least one schema", path)
            inner = ((inner_path(path, str(index)), each) for index, each in enumerate(value))
            schema[keyword] = [self._schema(each, resolver, place, depth) for place, each in inner]
        elif keyword in SCHEMAS:
            schema[keyword] = self._schema(value, resolver, path, depth)
        elif keyword in MAPS_OF_SCHEMAS:
            if not isinstance(value, dict):
                raise SchemaError("must be an object of schemas", path)
            named: dict[str, object] = {}
            for name, each in value.items():
                place = inner_path(path, name)
                key = self._pattern(name, place) if keyword == "patternProperties" else name
                if keyword == "dependencies" and isinstance(each, list):
                    _check("required", each, place)
                    named[key] = each
                else:
                    named[key] = self._schema(each, resolver, place, depth)
            if keyword not in ("$defs", "definitions"):
                schema[keyword] = named
        elif keyword in RULES:
            _check(keyword, value, path)
            if keyword == "$ref":
                schema[keyword] = self._reference(str(value), resolver, path)
            elif keyword not in ANNOTATIONS:
                schema[keyword] = self._pattern(str(value), path) if keyword == "pattern" else value
        elif keyword in NOT_SUPPORTED:
            raise SchemaError("this keyword is not supported", path)

    def _pattern(self, source: str, path: str) -> Pattern:
        self._pattern_text += PATTERN_TEXT + len(source)
        if self._pattern_text > MOST_PATTERNS:
            raise SchemaError("the patterns are too many or too long", path)
        try:
            pattern = Pattern(source)
        except SchemaError as error:
            raise SchemaError(str(error), path) from None
        self._pattern_bytes += pattern.size_bytes
        return pattern

    def _reference(self, reference: str, resolver: Resolver[JSON], path: str) -> str:
        """Returns the definition name of the target, which is read later."""
        try:
            by_name = reference != "#" and not reference.startswith("#/")
            if len(reference) > LONGEST or by_name and not self._has_names:
                raise LookupError
            target = resolver.lookup(reference)
        except (
            Unresolvable,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
        ):  # or a flaw on the way
            message = f"{reference!r} leads to nothing in this schema, and others are not fetched"
            raise SchemaError(message, path) from None
        name = self._names.get(id(target.contents))
        if name is None:
            name = self._names[id(target.contents)] = f"d{len(self._names)}"
            self._waiting.append((name, target, path))
        return name


def _check(keyword: str, value: JSON, path: str) -> None:
    message, holds = RULES[keyword]
    if not holds(value):
        raise SchemaError(message, path)


def _dialect(raw: JSON) -> str:
    """Returns the ``$schema`` of `raw`, or "".

    Raises SchemaError for Draft 3 and for no schema at all.
    """
    if isinstance(raw, bool):
        return ""
    if not isinstance(raw, dict):
        raise SchemaError("a schema must be an object, or true or false")
    if not all(isinstance(raw.get(name, ""), str) for name in ("$id", "id")):
        raise SchemaError("must be a string", "$id")
    named = raw.get("$schema")
    named = named if isinstance(named, str) else ""
    if "draft-03" in named:
        raise SchemaError("Draft 3 is not supported", "$schema")
    return named


def _modernise(schema: dict[str, object], reference_alone: bool) -> None:
    """Rewrites `schema` in Draft 2020-12; with `reference_alone` drops keywords beside ``$ref``."""
    if reference_alone:
        for keyword in [*schema] if "$ref" in schema else ("minContains", "maxContains"):
            if keyword != "$ref":
                schema.pop(keyword, None)
    more = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if more is not None:
            schema["items"] = more
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        is_flag = isinstance(schema.get(exclusive), bool)
        if is_flag and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)
    for name, needed in cast(dict[str, object], schema.pop("dependencies", {})).items():
        keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        schema[keyword] = {**cast(dict[str, object], schema.get(keyword, {})), name: needed}
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"]]
    if "enum" in schema:
        schema["enum"] = EnumValues(cast(list[JSON], schema["enum"]))
    if "const" in schema:
        schema["const"] = EnumValues([cast(JSON, schema["const"])])
