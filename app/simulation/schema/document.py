"""A schema made ready: checked, told in Draft 2020-12, its references resolved and its patterns compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect, specification_with

from app.simulation.schema.errors import SchemaError
from app.simulation.schema.keywords import (
    ANNOTATIONS,
    IN_PLACE,
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    PLAIN,
    SCHEMAS,
)
from app.simulation.schema.modern import modernised
from app.simulation.schema.pattern import Pattern

DEEPEST = 80
"""Schemas nested in each other."""
MOST_SCHEMAS = 5000
"""Schemas of one document."""
MOST_PATTERNS = 20_000
"""Characters of all its patterns: compiling them takes time,"""
PATTERN_TEXT = 50
"""as much for each as for so many characters."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = {"$dynamicAnchor": "$dynamicRef", "$recursiveAnchor": "$recursiveRef"}
REFERENCE_ALONE = ("draft-03", "draft-04", "draft-06", "draft-07")
"""Drafts in which keywords beside a reference say nothing."""

Schema = Mapping[str, Any] | bool


class Document:
    """A schema as `draw` and `verdict` read it.

    `root` is a schema of Draft 2020-12 that refers only to its own ``$defs``, under names of ours;
    its patterns are `Pattern`s, and keywords without a say are left out. `schemas` lists every
    schema in it. With `lenient`, what is wrong is left out; else it raises SchemaError.
    """

    def __init__(self, raw: Mapping[str, Any] | bool, lenient: bool = False) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.definitions: dict[str, Schema] = {}
        self._lenient = lenient
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Any, Any, str]] = []
        self._anchors: dict[str, set[int]] = {}
        self._dynamic: set[str] = set()
        self._pattern_text = 0
        specification = _specification(raw)
        self._alone = any(draft in _dialect(raw) for draft in REFERENCE_ALONE)
        self._specification = specification
        _check_name(raw)
        root = specification.create_resource(raw)
        self.root = self._read(raw, Registry().resolver_with_root(root), "", 0)
        while self._waiting:
            name, target, resolver, path = self._waiting.pop()
            self.definitions[name] = self._read(target, resolver, path, 0)
        if isinstance(self.root, dict) and self.definitions:
            self.root["$defs"] = self.definitions
        self._refuse_ambiguous()
        self._refuse_costly()
        _refuse_endless(self)

    def target(self, reference: str) -> Schema:
        """The schema that a ``$ref`` of this document names."""
        return self.definitions[reference.rpartition("/")[2]]

    def _read(self, raw: Any, resolver: Any, path: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise SchemaError("must be an object, or true or false", path)
        if depth > DEEPEST or len(self.schemas) >= MOST_SCHEMAS:
            raise SchemaError("the schema is too deep or too large", path)
        if depth and isinstance(raw.get("$id", raw.get("id")), str):
            resolver = resolver.in_subresource(self._specification.create_resource(raw))
        schema: dict[str, Any] = {}
        self.schemas.append(schema)
        for keyword, value in raw.items():
            place = f"{path}.{keyword}" if path else keyword
            try:
                self._take(schema, keyword, value, resolver, place, depth + 1)
            except SchemaError:
                if not self._lenient:
                    raise
            if keyword in ANCHORS:
                anchor = value if isinstance(value, str) else ""
                self._anchors.setdefault(f"{ANCHORS[keyword]}#{anchor}", set()).add(id(raw))
        modernised(schema, self._alone)
        return schema

    def _take(
        self, schema: dict[str, Any], keyword: str, value: Any, resolver: Any, path: str, depth: int
    ) -> None:
        """Check `value` and put it, read, into `schema`."""
        if keyword in SCHEMAS and not (keyword == "items" and isinstance(value, list)):
            schema[keyword] = self._read(value, resolver, path, depth)
        elif keyword in LISTS_OF_SCHEMAS or keyword == "items":
            schema[keyword] = list(self._each(value, resolver, path, depth))
        elif keyword in MAPS_OF_SCHEMAS:
            self._take_map(schema, keyword, value, resolver, path, depth)
        elif keyword in PLAIN or keyword in ANNOTATIONS:
            message, holds = PLAIN.get(keyword) or ANNOTATIONS[keyword]
            if not holds(value):
                raise SchemaError(message, path)
            if keyword in REFERENCES:
                self._dynamic.add(f"{keyword}#{value.rpartition('#')[2]}")
                schema["$ref"] = self._reference(value, resolver, path)
            elif keyword in PLAIN:
                schema[keyword] = self._pattern(value, path) if keyword == "pattern" else value

    def _each(self, value: Any, resolver: Any, path: str, depth: int) -> Iterator[Schema]:
        if not isinstance(value, list) or not value:
            raise SchemaError("must be a list of at least one schema", path)
        for index, each in enumerate(value):
            yield self._read(each, resolver, f"{path}.{index}", depth)

    def _take_map(
        self, schema: dict[str, Any], keyword: str, value: Any, resolver: Any, path: str, depth: int
    ) -> None:
        if not isinstance(value, dict):
            raise SchemaError("must be an object of schemas", path)
        read: dict[str, Any] = {}
        for name, each in value.items():
            place = f"{path}.{name}"
            if keyword == "dependencies" and isinstance(each, list):
                if not PLAIN["required"][1](each):
                    raise SchemaError(PLAIN["required"][0], place)
                read[name] = each
            else:
                key = self._pattern(name, place) if keyword == "patternProperties" else name
                read[key] = self._read(each, resolver, place, depth)
        if keyword not in ("$defs", "definitions"):
            schema[keyword] = read

    def _pattern(self, source: str, path: str) -> Pattern:
        self._pattern_text += PATTERN_TEXT + len(source)
        if self._pattern_text > MOST_PATTERNS:
            raise SchemaError("the patterns are too many or too long", path)
        try:
            return Pattern(source)
        except SchemaError as error:
            raise SchemaError(str(error), path) from None

    def _refuse_ambiguous(self) -> None:
        """Raise SchemaError if what a dynamic reference means depends on the way to it."""
        for anchor, places in self._anchors.items():
            if len(places) > 1 and anchor in self._dynamic:
                raise SchemaError(f"{anchor.partition('#')[0]} to one of several anchors is not supported")

    def _refuse_costly(self) -> None:
        """Raise SchemaError where `jsonschema` itself would search, without our limit of time."""
        if any("unevaluatedProperties" in schema for schema in self.schemas):
            for schema in self.schemas:
                for pattern in schema.get("patternProperties", ()):
                    if pattern.risky:
                        raise SchemaError(
                            f"the pattern {pattern.source!r} is too costly beside unevaluatedProperties"
                        )

    def _reference(self, reference: str, resolver: Any, path: str) -> str:
        """What `reference` is called in this document; what it names is read later."""
        try:
            found = resolver.lookup(reference)
        except (Unresolvable, ValueError, LookupError, TypeError, AttributeError):
            raise SchemaError(
                f"{reference!r} leads to nothing in this schema; others are not fetched", path
            ) from None
        name = self._names.get(id(found.contents))
        if name is None or isinstance(found.contents, bool):
            name = f"d{len(self._names)}"
            self._names[id(found.contents)] = name
            self._waiting.append((name, found.contents, found.resolver, path))
        return f"#/$defs/{name}"


def in_place(schema: Mapping[str, Any], document: Document) -> Iterator[Schema]:
    """The schemas that `schema` applies to the very value it speaks of."""
    for keyword in IN_PLACE:
        value = schema.get(keyword)
        if value is None:
            continue
        if keyword == "$ref":
            yield document.target(value)
        elif isinstance(value, list):
            yield from value
        elif keyword == "dependentSchemas":
            yield from value.values()
        else:
            yield value


def _refuse_endless(document: Document) -> None:
    """Raise SchemaError if a schema is applied to its own value again and again."""
    if not document.definitions:
        return
    graph = {id(schema): map(id, in_place(schema, document)) for schema in document.schemas}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        raise SchemaError("a reference leads back to itself without going into the value") from None


def _check_name(raw: Any) -> None:
    if isinstance(raw, dict) and not all(isinstance(raw.get(name, ""), str) for name in ("$id", "id")):
        raise SchemaError("must be a string", "$id")


def _dialect(raw: Any) -> str:
    named = raw.get("$schema", "") if isinstance(raw, dict) else ""
    return named if isinstance(named, str) else ""


def _specification(raw: Any) -> Specification[Any]:
    """The draft that `raw` names, else Draft 2020-12."""
    named = _dialect(raw)
    if "draft-03" in named:
        raise SchemaError("Draft 3 is not supported", "$schema")
    try:
        return specification_with(named, default=DRAFT202012)
    except UnknownDialect:
        return DRAFT202012
