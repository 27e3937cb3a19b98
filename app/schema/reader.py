"""Reads a JSON Schema as it was sent: checks it, resolves its references, tells it in Draft 2020-12."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect, specification_with

from app.schema.document import Document, Schema
from app.schema.errors import SchemaError
from app.schema.keywords import (
    ANCHORS,
    ANNOTATIONS,
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    PLAIN,
    REFERENCES,
    SCHEMAS,
)
from app.schema.modern import modernised
from app.schema.pattern import Pattern

DEEPEST = 80
"""Schemas nested in each other."""
MOST_SCHEMAS = 5000
"""Schemas of one document."""
MOST_PATTERNS = 20_000
"""Characters of all its patterns: compiling them takes time,"""
PATTERN_TEXT = 50
"""as much for each as for so many characters."""
REFERENCE_ALONE = ("draft-04", "draft-06", "draft-07")
"""Drafts in which keywords beside a reference say nothing."""


def read(raw: Any, lenient: bool = False) -> Document:
    """The document that `raw` is. Raises SchemaError; with `lenient` what is wrong is left out instead.

    A reference to another document is wrong: none is fetched.
    """
    return _Reader(raw, lenient).document()


class _Reader:
    def __init__(self, raw: Any, lenient: bool) -> None:
        dialect = _dialect(raw)
        self._raw = raw
        self._lenient = lenient
        self._specification = _specification(dialect)
        self._reference_alone = any(draft in dialect for draft in REFERENCE_ALONE)
        self._schemas: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Any, Any, str]] = []
        self._anchors: dict[str, set[int]] = {}
        self._dynamic: set[str] = set()
        self._pattern_text = 0

    def document(self) -> Document:
        _check_root(self._raw)
        resource = self._specification.create_resource(self._raw)
        root = self._read(self._raw, Registry().resolver_with_root(resource), "", 0)
        definitions: dict[str, Schema] = {}
        while self._waiting:
            name, target, resolver, path = self._waiting.pop()
            definitions[name] = self._read(target, resolver, path, 0)
        self._refuse_ambiguous()
        return Document(root, definitions, self._schemas)

    def _read(self, raw: Any, resolver: Any, path: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return raw
        if depth > DEEPEST or len(self._schemas) >= MOST_SCHEMAS:
            raise SchemaError("the schema is too deep or too large", path)
        if not isinstance(raw, dict):
            if self._lenient:
                return True
            raise SchemaError("a schema must be an object, or true or false", path)
        if depth and isinstance(raw.get("$id", raw.get("id")), str):
            resolver = resolver.in_subresource(self._specification.create_resource(raw))
        schema: dict[str, Any] = {}
        self._schemas.append(schema)
        for keyword, value in raw.items():
            try:
                self._take(schema, keyword, value, resolver, _joined(path, keyword), depth + 1)
            except SchemaError:
                if not self._lenient:
                    raise
            if keyword in ANCHORS:
                anchor = value if isinstance(value, str) else ""
                self._anchors.setdefault(f"{ANCHORS[keyword]}#{anchor}", set()).add(id(raw))
        modernised(schema, self._reference_alone)
        return schema

    def _take(
        self, schema: dict[str, Any], keyword: str, value: Any, resolver: Any, path: str, depth: int
    ) -> None:
        """Check `value` and put it, read, into `schema`."""
        if keyword in LISTS_OF_SCHEMAS or (keyword == "items" and isinstance(value, list)):
            schema[keyword] = list(self._each(value, resolver, path, depth))
        elif keyword in SCHEMAS:
            schema[keyword] = self._read(value, resolver, path, depth)
        elif keyword in MAPS_OF_SCHEMAS:
            named = dict(self._named(keyword, value, resolver, path, depth))
            if keyword not in ("$defs", "definitions"):
                schema[keyword] = named
        elif keyword in PLAIN or keyword in ANNOTATIONS:
            self._take_plain(schema, keyword, value, resolver, path)

    def _take_plain(self, schema: dict[str, Any], keyword: str, value: Any, resolver: Any, path: str) -> None:
        message, holds = PLAIN.get(keyword) or ANNOTATIONS[keyword]
        if not holds(value):
            raise SchemaError(message, path)
        if keyword in REFERENCES:
            self._dynamic.add(f"{keyword}#{value.rpartition('#')[2]}")
            schema["$ref"] = self._reference(value, resolver, path)
        elif keyword == "pattern":
            schema[keyword] = self._pattern(value, path)
        elif keyword in PLAIN:
            schema[keyword] = value

    def _each(self, value: Any, resolver: Any, path: str, depth: int) -> Iterator[Schema]:
        if not isinstance(value, list) or not value:
            raise SchemaError("must be a list of at least one schema", path)
        for index, each in enumerate(value):
            yield self._read(each, resolver, _joined(path, str(index)), depth)

    def _named(
        self, keyword: str, value: Any, resolver: Any, path: str, depth: int
    ) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise SchemaError("must be an object of schemas", path)
        for name, each in value.items():
            place = _joined(path, name)
            if keyword == "dependencies" and isinstance(each, list):
                message, holds = PLAIN["required"]
                if not holds(each):
                    raise SchemaError(message, place)
                yield name, each
            else:
                key = self._pattern(name, place) if keyword == "patternProperties" else name
                yield key, self._read(each, resolver, place, depth)

    def _pattern(self, source: str, path: str) -> Pattern:
        self._pattern_text += PATTERN_TEXT + len(source)
        if self._pattern_text > MOST_PATTERNS:
            raise SchemaError("the patterns are too many or too long", path)
        try:
            return Pattern(source)
        except SchemaError as error:
            raise SchemaError(str(error), path) from None

    def _reference(self, reference: str, resolver: Any, path: str) -> str:
        """What `reference` is called in this document; what it leads to is read later."""
        try:
            found = resolver.lookup(reference)
        except (Unresolvable, ValueError, LookupError, TypeError, AttributeError):
            message = f"{reference!r} leads to nothing in this schema, and others are not fetched"
            raise SchemaError(message, path) from None
        name = self._names.get(id(found.contents))
        if name is None:
            name = f"d{len(self._names)}"
            self._names[id(found.contents)] = name
            self._waiting.append((name, found.contents, found.resolver, path))
        return f"#/$defs/{name}"

    def _refuse_ambiguous(self) -> None:
        """Raise SchemaError if what a dynamic reference means depends on the way to it."""
        for anchor, places in self._anchors.items():
            if len(places) > 1 and anchor in self._dynamic:
                raise SchemaError(f"{anchor.partition('#')[0]} to one of several anchors is not supported")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _dialect(raw: Any) -> str:
    """The URI of the draft that `raw` names; empty when it names none."""
    named = raw.get("$schema") if isinstance(raw, dict) else None
    return named if isinstance(named, str) else ""


def _specification(dialect: str) -> Specification[Any]:
    """The draft of that URI; Draft 2020-12 for any other."""
    if "draft-03" in dialect:
        raise SchemaError("Draft 3 is not supported", "$schema")
    try:
        return specification_with(dialect, default=DRAFT202012)
    except UnknownDialect:
        return DRAFT202012


def _check_root(raw: Any) -> None:
    if not isinstance(raw, (dict, bool)):
        raise SchemaError("a schema must be an object, or true or false")
    if isinstance(raw, dict) and not all(isinstance(raw.get(name, ""), str) for name in ("$id", "id")):
        raise SchemaError("must be a string", "$id")
