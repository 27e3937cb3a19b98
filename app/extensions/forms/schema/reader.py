"""Reads a JSON Schema: checks keywords, resolves references, converts older drafts.

The result is in Draft 2020-12. Keywords of all drafts from 4 to 2020-12 are supported. Older
spellings (lists under ``items``, ``dependencies``, true under ``exclusiveMinimum``) are read in
every draft, because tools in the field mix them.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, cast

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Registry, Specification
from referencing._core import Resolved, Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from app.extensions.forms.schema.bounds import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
    SchemaError,
    join_path,
)
from app.extensions.forms.schema.document import Document
from app.extensions.forms.schema.keywords import (
    ANNOTATIONS,
    DYNAMIC_REFERENCES,
    JSON,
    EnumValues,
    Keywords,
    Rule,
    Schema,
    keyword_rules,
)
from app.extensions.forms.schema.patterns import Pattern
from config.untrusted import decode_untrusted, python_json

MAX_REFERENCE_LENGTH = 2000
"""Maximum length of a ``$ref`` that is resolved."""
MAX_SHOWN_REFERENCE = 200
"""Maximum length of a ``$ref`` in an error."""
MAX_DEPTH = 80
"""Maximum levels of nested schemas."""
MAX_SCHEMAS = 5000
"""Maximum schemas of one document."""
MAX_PATTERN_LENGTH = 20_000
"""Maximum length of all patterns of a document together, as compiling takes time."""
LENGTH_PER_PATTERN = 50
"""Characters that each pattern counts beside its own."""
METASCHEMA = b"json-schema.org/draft"
"""Part of the names of metaschemas, which references may name."""
NAMING_KEYWORD = re.compile(rb'"(?:\$?id|\$anchor|\$dynamicAnchor)"')
"""Keywords that name a schema for references, which are otherwise JSON pointers."""
EMPTY_REGISTRY: Registry[JSON] = Registry()
METASCHEMAS = cast("Registry[JSON]", REGISTRY)
EXCLUSIVE_REFERENCE_DRAFTS = ("draft-04", "draft-06", "draft-07")
"""Drafts that ignore keywords beside a reference."""
RULES: Mapping[str, Rule] = keyword_rules()
"""Keywords that hold no schema, with the rule for their values."""
SUBSCHEMA_KEYWORDS = frozenset(
    (*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS, *SCHEMA_MAP_KEYWORDS, "items")
)
DEFINITIONS = ("$defs", "definitions")
EXCLUSIVE_LIMITS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class Place(NamedTuple):
    """The place of a part of a schema: the resolver of its references, its path and its depth."""

    resolver: Resolver[JSON]
    path: str
    depth: int

    def inner(self, name: str) -> "Place":
        """Returns the place of the part `name`, at the same depth."""
        return Place(self.resolver, join_path(self.path, name), self.depth)


class PendingDefinition(NamedTuple):
    """The target of a reference, to be read later."""

    name: str
    target: Resolved[JSON]
    path: str


class Reader:
    """Reads the schema in the JSON `text`; `lenient` leaves out invalid keywords.

    Raises:
        SchemaError: The schema is invalid.
    """

    def __init__(self, text: bytes, lenient: bool) -> None:
        self._root: JSON = decode_untrusted(text, decoder=python_json)
        self._length = len(text)
        dialect = _dialect(self._root)
        self._specification: Specification[JSON]
        self._specification = specification_with(dialect, default=DRAFT202012)
        self._lenient = lenient
        self._has_references = b'Ref"' in text or b'"$ref"' in text
        self._refers_to_metaschema = self._has_references and METASCHEMA in text
        self._has_names = self._refers_to_metaschema or NAMING_KEYWORD.search(text) is not None
        self._has_exclusive_references = any(
            draft in dialect for draft in EXCLUSIVE_REFERENCE_DRAFTS
        )
        self._schemas: list[Keywords] = []
        self._read: dict[int, Schema] = {}
        """Read schemas by the `id` of the raw ones."""
        self._names: dict[int, str] = {}
        """Names of definitions by the `id` of the raw schema."""
        self._pending: list[PendingDefinition] = []
        self._pattern_length = 0
        self._pattern_bytes = 0

    def read_document(self) -> Document:
        """Returns the document. Raises SchemaError if the schema is invalid."""
        root = self._specification.create_resource(self._root)
        registry = EMPTY_REGISTRY
        uri = root.id() or ""
        if self._refers_to_metaschema:
            registry = METASCHEMAS
        if self._has_references:
            registry = registry.with_resources([("", root), (uri, root)])
        try:
            if self._has_references and self._has_names:
                registry = registry.crawl()
        except (AttributeError, TypeError, ValueError):  # parts that are not schemas
            self._has_names = False
        schema = self._read_schema(self._root, Place(registry.resolver(uri), "", 0))
        definitions: dict[str, Schema] = {}
        for name, target, path in self._pending:  # reading a schema may append to the list
            definition = self._read.get(id(target.contents))
            if definition is None:
                definition = self._read_schema(target.contents, Place(target.resolver, path, 0))
            definitions[name] = definition
        return Document(
            schema,
            definitions,
            schemas=self._schemas,
            pattern_bytes=self._pattern_bytes,
            length=self._length,
        )

    def _read_schema(self, raw: JSON, place: Place) -> Schema:
        if isinstance(raw, bool):
            return raw
        if place.depth > MAX_DEPTH or len(self._schemas) >= MAX_SCHEMAS:
            if self._lenient:
                return True
            raise SchemaError("the schema is nested too deeply or is too large", place.path)
        if not isinstance(raw, dict):
            if self._lenient:
                return True
            raise SchemaError("a schema must be an object, true, or false", place.path)
        resolver = self._inner_resolver(raw, place)
        schema: dict[str, object] = {}
        keywords = cast(Keywords, schema)
        self._schemas.append(keywords)
        self._read[id(raw)] = keywords
        for keyword, value in raw.items():
            keyword_place = Place(resolver, join_path(place.path, keyword), place.depth + 1)
            try:
                self._read_keyword(schema, keyword, value, keyword_place)
            except SchemaError:
                if not self._lenient:
                    raise
        _convert_draft(schema, self._has_exclusive_references)
        return keywords

    def _inner_resolver(self, raw: dict[str, JSON], place: Place) -> Resolver[JSON]:
        """Returns the resolver of references in `raw`, which may have a separate URI."""
        uri = raw.get("$id", raw.get("id"))
        if place.depth and isinstance(uri, str) and uri[:1] not in ("", "#"):
            with suppress(ValueError):  # not a URI
                resource = self._specification.create_resource(raw)
                return place.resolver.in_subresource(resource)
        return place.resolver

    def _read_keyword(
        self, schema: dict[str, object], keyword: str, value: JSON, place: Place
    ) -> None:
        """Adds a keyword to `schema`. Unknown keywords are left out, as JSON Schema asks for."""
        if keyword in DYNAMIC_REFERENCES and "$ref" not in schema:
            # Within one document, a dynamic reference has the target of a plain one.
            keyword = "$ref"
        if keyword in RULES:
            _check(keyword, value, place.path)
            if keyword not in ANNOTATIONS:
                schema[keyword] = self._read_value(keyword, value, place)
        elif keyword in SUBSCHEMA_KEYWORDS:
            subschemas = self._read_subschemas(keyword, value, place)
            # Only references use definitions, and `_read_reference` collects their targets.
            if keyword not in DEFINITIONS:
                schema[keyword] = subschemas

    def _read_value(self, keyword: str, value: JSON, place: Place) -> object:
        """Returns the value of a keyword that holds no schema."""
        if keyword == "$ref":
            return self._read_reference(str(value), place)
        if keyword == "pattern":
            return self._read_pattern(str(value), place.path)
        return value

    def _read_subschemas(self, keyword: str, value: JSON, place: Place) -> object:
        """Returns the schema, or the list or mapping of schemas, that a keyword holds."""
        if keyword in SCHEMA_MAP_KEYWORDS:
            return self._read_map(keyword, value, place)
        # Up to Draft 2019-09, `items` may also be a list.
        if keyword in SCHEMA_LIST_KEYWORDS or (keyword == "items" and isinstance(value, list)):
            return self._read_list(value, place)
        return self._read_schema(value, place)

    def _read_list(self, value: JSON, place: Place) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise SchemaError("must be a list that contains at least one schema", place.path)
        return [self._read_schema(raw, place.inner(str(index))) for index, raw in enumerate(value)]

    def _read_map(self, keyword: str, value: JSON, place: Place) -> dict[str, object]:
        if not isinstance(value, dict):
            raise SchemaError("must be an object whose values are schemas", place.path)
        named: dict[str, object] = {}
        for name, raw in value.items():
            raw_place = place.inner(name)
            key = name
            if keyword == "patternProperties":
                key = self._read_pattern(name, raw_place.path)
            if keyword == "dependencies" and isinstance(raw, list):
                _check("required", raw, raw_place.path)
                named[key] = raw
            else:
                named[key] = self._read_schema(raw, raw_place)
        return named

    def _read_pattern(self, source: str, path: str) -> Pattern:
        self._pattern_length += LENGTH_PER_PATTERN + len(source)
        if self._pattern_length > MAX_PATTERN_LENGTH:
            raise SchemaError("the patterns are too long, or there are too many of them", path)
        try:
            pattern = Pattern(source)
        except SchemaError as error:
            raise SchemaError(str(error), path) from None
        self._pattern_bytes += pattern.size_bytes
        return pattern

    def _read_reference(self, reference: str, place: Place) -> str:
        """Returns the definition name of the target, which is read later."""
        is_pointer = reference == "#" or reference.startswith("#/")
        try:
            if len(reference) > MAX_REFERENCE_LENGTH or not (is_pointer or self._has_names):
                raise LookupError
            target = place.resolver.lookup(reference)
        except (
            Unresolvable,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
        ):  # or a flaw on the way
            raise SchemaError(
                f"{reference[:MAX_SHOWN_REFERENCE]!r} is not in this schema;"
                " other documents are not fetched",
                place.path,
            ) from None
        key = id(target.contents)
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._pending.append(PendingDefinition(self._names[key], target, place.path))
        return self._names[key]


def _check(keyword: str, value: JSON, path: str) -> None:
    rule = RULES[keyword]
    if not rule.accepts(value):
        raise SchemaError(rule.message, path)


def _dialect(raw: JSON) -> str:
    """Returns the ``$schema`` of `raw`, or "".

    Raises:
        SchemaError: The schema is in Draft 3, or `raw` is not a schema.
    """
    if isinstance(raw, bool):
        return ""
    if not isinstance(raw, dict):
        raise SchemaError("a schema must be an object, true, or false")
    if not all(isinstance(raw.get(name, ""), str) for name in ("$id", "id")):
        raise SchemaError("must be a string", "$id")
    dialect = raw.get("$schema")
    if not isinstance(dialect, str):
        return ""
    if "draft-03" in dialect:
        raise SchemaError("Draft 3 is not supported", "$schema")
    return dialect


def _convert_draft(schema: dict[str, object], has_exclusive_references: bool) -> None:
    """Rewrites `schema` in Draft 2020-12.

    With `has_exclusive_references` the keywords beside ``$ref`` are dropped.
    """
    if has_exclusive_references:
        _drop_ignored_keywords(schema)
    additional_items = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if additional_items is not None:
            schema["items"] = additional_items
    for exclusive, limit in EXCLUSIVE_LIMITS:
        is_flag = isinstance(schema.get(exclusive), bool)
        if is_flag and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)
    dependencies = cast(dict[str, object], schema.pop("dependencies", {}))
    for name, dependency in dependencies.items():
        keyword = "dependentSchemas"
        if isinstance(dependency, list):
            keyword = "dependentRequired"
        members = cast(dict[str, object], schema.get(keyword, {}))
        schema[keyword] = {**members, name: dependency}
    _wrap_values(schema)


def _drop_ignored_keywords(schema: dict[str, object]) -> None:
    """Drops keywords that Draft 7 and older ones ignore."""
    ignored = ["minContains", "maxContains"]
    if "$ref" in schema:
        ignored = [keyword for keyword in schema if keyword != "$ref"]
    for keyword in ignored:
        schema.pop(keyword, None)


def _wrap_values(schema: dict[str, object]) -> None:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"]]
    if "enum" in schema:
        schema["enum"] = EnumValues(cast(list[JSON], schema["enum"]))
    if "const" in schema:
        schema["const"] = EnumValues([cast(JSON, schema["const"])])
