"""Reads a JSON Schema: checks keywords, resolves references, rewrites older drafts in Draft 2020-12."""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import suppress
from typing import cast

from referencing import Registry, Specification
from referencing._core import Resolved, Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from app.engine.forms.schema.bounds import SchemaError, inner_path
from app.engine.forms.schema.document import (
    ANNOTATIONS,
    JSON,
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    NOT_SUPPORTED,
    RULES,
    SCHEMAS,
    Document,
    EnumValues,
    Keywords,
    Schema,
)
from app.engine.forms.schema.patterns import Pattern

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
NAMES = re.compile(rb'"(?:\$?id|\$anchor|\$dynamicAnchor)"')
"""Keywords that name a schema for references, which are else JSON pointers."""
EMPTY: Registry[JSON] = Registry()
REFERENCE_ALONE = ("draft-04", "draft-06", "draft-07")
"""Drafts that ignore keywords beside a reference."""


def read(text: bytes, lenient: bool) -> Document:
    """Returns the document in the JSON `text`; `lenient` leaves out wrong keywords. Raises SchemaError."""
    return _Reader(text, lenient).document()


class _Reader:
    def __init__(self, text: bytes, lenient: bool) -> None:
        self._root: JSON = json.loads(text)
        dialect = _dialect(self._root)
        specification = specification_with(dialect, default=DRAFT202012)
        self._specification: Specification[JSON] = specification
        self._lenient = lenient
        self._has_references = b'"$ref"' in text
        self._has_names = NAMES.search(text) is not None
        self._reference_alone = any(draft in dialect for draft in REFERENCE_ALONE)
        self._schemas: list[Keywords] = []
        self._read: dict[int, Schema] = {}
        """Read schemas by the `id` of the raw ones."""
        self._names: dict[int, str] = {}
        self._waiting: deque[tuple[str, Resolved[JSON], str]] = deque()
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
        while self._waiting:
            name, target, path = self._waiting.popleft()
            read = self._read.get(id(target.contents))
            definitions[name] = (
                self._schema(target.contents, target.resolver, path, 0) if read is None else read
            )
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
        if depth and isinstance(own := raw.get("$id", raw.get("id")), str) and own[:1] not in ("", "#"):
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
        """Checks `value`, and adds the keyword as read to `schema`."""
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
        """Returns the definition name of the target of `reference`, which is read later."""
        try:
            by_name = reference != "#" and not reference.startswith("#/")
            if len(reference) > LONGEST or by_name and not self._has_names:
                raise LookupError
            target = resolver.lookup(reference)
        except (Unresolvable, LookupError, ValueError, TypeError, AttributeError):  # or a flaw on the way
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
    """Returns the ``$schema`` of `raw`, or "". Raises SchemaError for Draft 3 and for no schema at all."""
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
