"""Reads a JSON Schema: checks keywords, resolves references, rewrites older drafts in Draft 2020-12."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, cast
from urllib.parse import unquote, urldefrag, urljoin

from app.engine.forms.schema.document import (
    ANNOTATIONS,
    JSON,
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    NOT_SUPPORTED,
    PLAIN,
    SCHEMAS,
    Document,
    Keywords,
    Options,
    Schema,
    is_number,
)
from app.engine.forms.schema.errors import SchemaError, inner_path
from app.engine.forms.schema.patterns import Pattern

LONGEST = 2000
"""Characters of the longest ``$ref`` or ``$id`` that is resolved."""


class Target(NamedTuple):
    """A schema as sent, and the base URI of its references."""

    raw: JSON
    base: str


class References:
    """Finds the targets of references by JSON pointer, ``$anchor`` or ``$id``.

    `id_keyword` is ``id`` in Draft 4. Ids and anchors are collected at their first use.
    """

    def __init__(self, root: JSON, id_keyword: str) -> None:
        self._id_keyword = id_keyword
        self.root = Target(root, self.base_of(root, ""))
        self._resources = {self.root.base: self.root, "": self.root}
        self._anchors: dict[tuple[str, str], Target] | None = None

    def base_of(self, raw: JSON, base: str) -> str:
        """Returns the base URI of references in `raw`; `base` is the base URI of the outer schema."""
        own = raw.get(self._id_keyword) if isinstance(raw, dict) else None
        return _joined(base, own).partition("#")[0] if isinstance(own, str) else base

    def find(self, reference: str, base: str) -> Target | None:
        """Returns the target of `reference` in a schema with base URI `base`; None without a target."""
        if len(reference) > LONGEST:
            return None
        uri, fragment = urldefrag(_joined(base, reference))
        fragment = unquote(fragment)
        if uri not in self._resources or (fragment and not fragment.startswith("/")):
            anchors = self._collected()
            if fragment and not fragment.startswith("/"):
                return anchors.get((uri, fragment))
        resource = self._resources.get(uri)
        return resource and self._follow(resource, fragment)

    def _follow(self, target: Target, pointer: str) -> Target | None:
        """Returns the target of a JSON pointer (RFC 6901) from `target`."""
        raw, base = target
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(raw, dict) and name in raw:
                raw = raw[name]
            elif isinstance(raw, list) and name.isdecimal() and int(name) < len(raw):
                raw = raw[int(name)]
            else:
                return None
            base = self.base_of(raw, base)
        return Target(raw, base)

    def _collected(self) -> dict[tuple[str, str], Target]:
        """Returns all anchors by base URI and name, and notes the schemas with ids."""
        if self._anchors is not None:
            return self._anchors
        self._anchors = {}
        waiting = [self.root]
        while waiting:
            target = waiting.pop()
            self._note(target, self._anchors)
            for raw in _schemas_in(target.raw):
                waiting.append(Target(raw, self.base_of(raw, target.base)))
        return self._anchors

    def _note(self, target: Target, anchors: dict[tuple[str, str], Target]) -> None:
        raw, base = target
        if not isinstance(raw, dict):
            return
        own = raw.get(self._id_keyword)
        if isinstance(own, str):
            if own.startswith("#"):  # how drafts up to 7 write an anchor
                anchors.setdefault((base, own[1:]), target)
            else:
                self._resources.setdefault(base, target)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = raw.get(keyword)
            if isinstance(name, str):
                anchors.setdefault((base, name), target)


def _joined(base: str, reference: str) -> str:
    """Returns `reference` joined to `base`, or unchanged where either is no URI."""
    if not base or not reference or len(reference) > LONGEST:
        return reference or base
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _schemas_in(raw: JSON) -> Iterator[JSON]:
    if not isinstance(raw, dict):
        return
    for keyword, value in raw.items():
        if isinstance(value, list) and (keyword in LISTS_OF_SCHEMAS or keyword == "items"):
            yield from value
        elif isinstance(value, dict):
            if keyword in MAPS_OF_SCHEMAS:
                yield from value.values()
            elif keyword in SCHEMAS:
                yield value


DEEPEST = 80
"""Most levels of nested schemas."""
MOST_SCHEMAS = 5000
"""Most schemas of one document."""
MOST_PATTERNS = 20_000
"""Most characters of all patterns of a document, as compiling takes time."""
PATTERN_TEXT = 50
"""Characters that each pattern counts beside its own."""
REFERENCE_ALONE = ("draft-04", "draft-06", "draft-07")
"""Drafts that ignore keywords beside a reference."""


def read(raw: JSON, lenient: bool) -> Document:
    """Returns the document in `raw`. Raises SchemaError; with `lenient` wrong keywords are left out.

    A reference to another document is wrong, as none is fetched.
    """
    return _Reader(raw, lenient).document()


class _Reader:
    def __init__(self, raw: JSON, lenient: bool) -> None:
        dialect = _dialect(raw)
        self._lenient = lenient
        self._references = References(raw, "id" if "draft-04" in dialect else "$id")
        self._reference_alone = any(draft in dialect for draft in REFERENCE_ALONE)
        self._schemas: list[Keywords] = []
        self._read: dict[int, Schema] = {}
        """Read schemas by the `id` of the raw ones."""
        self._names: dict[int, str] = {}
        self._waiting: deque[tuple[str, Target, str]] = deque()
        self._pattern_text = self._pattern_bytes = 0

    def document(self) -> Document:
        target = self._references.root
        root = self._schema(target.raw, target.base, "", 0)
        definitions: dict[str, Schema] = {}
        while self._waiting:
            name, target, path = self._waiting.popleft()
            read = self._read.get(id(target.raw))
            definitions[name] = self._schema(target.raw, target.base, path, 0) if read is None else read
        return Document(root, definitions, self._schemas, self._pattern_bytes)

    def _schema(self, raw: JSON, base: str, path: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return raw
        if depth > DEEPEST or len(self._schemas) >= MOST_SCHEMAS:
            raise SchemaError("the schema is too deep or too large", path)
        if not isinstance(raw, dict):
            if self._lenient:
                return True
            raise SchemaError("a schema must be an object, or true or false", path)
        if depth:
            base = self._references.base_of(raw, base)
        schema: dict[str, object] = {}
        read = cast(Keywords, schema)
        self._schemas.append(read)
        self._read[id(raw)] = read
        for keyword, value in raw.items():
            try:
                self._take(schema, keyword, value, base, inner_path(path, keyword), depth + 1)
            except SchemaError:
                if not self._lenient:
                    raise
        _modernise(schema, self._reference_alone)
        return read

    def _take(
        self, schema: dict[str, object], keyword: str, value: JSON, base: str, path: str, depth: int
    ) -> None:
        """Checks `value`, and adds the keyword as read to `schema`."""
        if keyword in LISTS_OF_SCHEMAS or (keyword == "items" and isinstance(value, list)):
            schema[keyword] = list(self._each(value, base, path, depth))
        elif keyword in SCHEMAS:
            schema[keyword] = self._schema(value, base, path, depth)
        elif keyword in MAPS_OF_SCHEMAS:
            named = dict(self._named(keyword, value, base, path, depth))
            if keyword not in ("$defs", "definitions"):
                schema[keyword] = named
        elif keyword in PLAIN or keyword in ANNOTATIONS:
            self._take_plain(schema, keyword, value, base, path)
        elif keyword in NOT_SUPPORTED:
            raise SchemaError("this keyword is not supported", path)

    def _take_plain(self, schema: dict[str, object], keyword: str, value: JSON, base: str, path: str) -> None:
        message, holds = PLAIN.get(keyword) or ANNOTATIONS[keyword]
        if not holds(value):
            raise SchemaError(message, path)
        if keyword == "$ref":
            schema[keyword] = self._reference(str(value), base, path)
        elif keyword == "pattern":
            schema[keyword] = self._pattern(str(value), path)
        elif keyword in PLAIN:
            schema[keyword] = value

    def _each(self, value: JSON, base: str, path: str, depth: int) -> Iterator[Schema]:
        if not isinstance(value, list) or not value:
            raise SchemaError("must be a list of at least one schema", path)
        for index, each in enumerate(value):
            yield self._schema(each, base, inner_path(path, str(index)), depth)

    def _named(
        self, keyword: str, value: JSON, base: str, path: str, depth: int
    ) -> Iterator[tuple[str, Schema | list[str]]]:
        if not isinstance(value, dict):
            raise SchemaError("must be an object of schemas", path)
        for name, each in value.items():
            place = inner_path(path, name)
            if keyword == "dependencies" and isinstance(each, list):
                message, holds = PLAIN["required"]
                if not holds(each):
                    raise SchemaError(message, place)
                yield name, cast(list[str], each)
            else:
                key = self._pattern(name, place) if keyword == "patternProperties" else name
                yield key, self._schema(each, base, place, depth)

    def _pattern(self, source: str, path: str) -> Pattern:
        cost = PATTERN_TEXT + len(source)
        self._pattern_text += cost
        if self._pattern_text > MOST_PATTERNS:
            raise SchemaError("the patterns are too many or too long", path)
        try:
            pattern = Pattern(source)
        except SchemaError as error:
            raise SchemaError(str(error), path) from None
        self._pattern_bytes += pattern.size_bytes
        return pattern

    def _reference(self, reference: str, base: str, path: str) -> str:
        """Returns the definition name of the target of `reference`, which is read later."""
        target = self._references.find(reference, base)
        if target is None:
            message = f"{reference!r} leads to nothing in this schema, and others are not fetched"
            raise SchemaError(message, path)
        name = self._names.get(id(target.raw))
        if name is None:
            name = self._names[id(target.raw)] = f"d{len(self._names)}"
            self._waiting.append((name, target, path))
        return name


def _dialect(raw: JSON) -> str:
    """Returns the ``$schema`` of `raw`, or "". Raises SchemaError for Draft 3 and for no schema at all."""
    if not isinstance(raw, (dict, bool)):
        raise SchemaError("a schema must be an object, or true or false")
    if isinstance(raw, bool):
        return ""
    if not all(isinstance(raw.get(name, ""), str) for name in ("$id", "id")):
        raise SchemaError("must be a string", "$id")
    named = raw.get("$schema")
    if isinstance(named, str) and "draft-03" in named:
        raise SchemaError("Draft 3 is not supported", "$schema")
    return named if isinstance(named, str) else ""


def _modernise(schema: dict[str, object], reference_alone: bool) -> None:
    """Rewrites `schema` in Draft 2020-12, in place.

    With `reference_alone`, for drafts up to 7, keywords beside ``$ref`` are dropped.
    """
    if reference_alone and "$ref" in schema:
        reference = schema["$ref"]
        schema.clear()
        schema["$ref"] = reference
    if reference_alone:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
    _modernise_items(schema)
    _modernise_limits(schema)
    _modernise_dependencies(schema)
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"]]
    if "enum" in schema:
        schema["enum"] = Options(cast(list[JSON], schema["enum"]))
    if "const" in schema:
        schema["const"] = Options([cast(JSON, schema["const"])])


def _modernise_items(schema: dict[str, object]) -> None:
    """Renames a list under ``items`` to ``prefixItems``, and ``additionalItems`` to ``items``."""
    more = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if more is not None:
            schema["items"] = more


def _modernise_limits(schema: dict[str, object]) -> None:
    """Renames ``minimum`` to ``exclusiveMinimum`` where the latter was true; for maxima, too."""
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        old = exclusive in schema and not is_number(schema[exclusive])
        if old and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)


def _modernise_dependencies(schema: dict[str, object]) -> None:
    """Splits ``dependencies`` into ``dependentRequired`` and ``dependentSchemas``."""
    for name, needed in cast(dict[str, object], schema.pop("dependencies", {})).items():
        keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        schema[keyword] = {**cast(dict[str, object], schema.get(keyword, {})), name: needed}
