"""Decides whether llguidance 1.7 can make a grammar of a schema.

llguidance refuses keywords that it knows but lacks, and schemas that accept no value. The rules are
those of its `parser/src/json`: `schema.rs` reads a schema as shapes, `compiler.rs` writes them.
"""

import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from urllib.parse import unquote

from referencing import Registry
from referencing._core import Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from app.extensions.forms.schema.backends import shapes
from app.extensions.forms.schema.backends.external import external_reference
from app.extensions.forms.schema.backends.patterns import llguidance_accepts
from app.extensions.forms.schema.backends.shapes import ANY, FALSE, Shape
from app.extensions.forms.schema.backends.work import RefusalError, Work
from app.extensions.forms.schema.bounds import SchemaError, WorkBudget
from app.extensions.forms.schema.keywords import JSON
from app.extensions.forms.schema.patterns import Pattern

TYPES = ("null", "boolean", "number", "string", "array", "object")
IN_PLACE_KEYWORDS = ("const", "enum", "allOf", "anyOf", "oneOf", "$ref")
IMPLEMENTED_KEYWORDS = frozenset(
    [
        *IN_PLACE_KEYWORDS,
        *("type", "items", "additionalItems", "prefixItems", "minItems", "maxItems"),
        *("properties", "additionalProperties", "patternProperties", "required"),
        *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ]
)
ANNOTATIONS = frozenset(
    [
        *("$anchor", "$defs", "definitions", "$schema", "$id", "id", "$comment", "title"),
        *("description", "default", "readOnly", "writeOnly", "examples"),
        *("contentMediaType", "contentEncoding"),
    ]
)
MISSING_KEYWORDS = {
    4: frozenset(["dependencies", "not", "uniqueItems"]),
    6: frozenset(["contains", "propertyNames"]),
    7: frozenset(["else", "if", "then"]),
    2019: frozenset(
        [
            *("$recursiveAnchor", "$recursiveRef", "dependentRequired", "dependentSchemas"),
            *("maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"),
        ]
    ),
    2020: frozenset(["$dynamicAnchor", "$dynamicRef"]),
}
"""Keywords that llguidance lacks, by the draft that introduced them."""
DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-04/schema": 4,
}
NEWEST_DRAFT = 2020
FORMATS = frozenset(
    [
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "unknown"),
    ]
)
MAX_ENUM_VALUES = 500
"""Maximum number of values read from an ``enum``; the others probably resemble these values."""
MAX_MATCH_STEPS = 2_000
"""Maximum steps of the search in a constant string: 20 ms."""
BASE_URI = "json-schema:///"
MAX_COUNT = 2**64 - 1
MAX_MULTIPLE_COEFFICIENT = 2**32 - 1
ONE_OF_MESSAGE = (
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with"
    " anyOf"
)
COUNTED_MESSAGE = (
    'min/maxProperties only supported when all keys listed in "properties" are required'
)

Raw = Mapping[str, JSON]


class ImpossibleError(Exception):
    """A shape has no value."""


class LlguidanceCheck:
    """Checks one document."""

    def __init__(self, root: JSON, work: Work) -> None:
        self._root = root
        self._work = work
        self._definitions: dict[str, Shape] = {}
        self._begun: set[str] = set()
        self._intersection = shapes.Intersection(self._resolve, work)
        self._resolver = self._root_resolver()

    def check(self) -> None:
        """Checks the whole document. Raises RefusalError with the message of llguidance."""
        try:
            self._check_references()
            shape = self._read(self._root, _draft_of(self._root, NEWEST_DRAFT))
            self._write(shape, set())
        except ImpossibleError as error:
            raise RefusalError(f"Grammar error: Unsatisfiable schema: {error}") from None
        except RefusalError as refusal:
            raise RefusalError(f"Grammar error: {refusal}") from None

    def _check_references(self) -> None:
        try:
            reference = external_reference(self._root, Work())
        except ValueError:
            raise RefusalError("Invalid URI reference") from None
        if reference is not None:
            raise RefusalError(
                f"Resource '{reference}' is not present in a registry and retrieving it failed: "
                "Default retriever does not fetch resources"
            )

    def _root_resolver(self) -> Resolver[JSON] | None:
        """Returns the resolver of references; None if the document cannot be registered."""
        if not isinstance(self._root, dict):
            return None
        dialect = self._root.get("$schema")
        specification = specification_with(
            dialect if isinstance(dialect, str) else "", default=DRAFT202012
        )
        try:
            resource = specification.create_resource(self._root)
            uri = resource.id() or BASE_URI
            registry: Registry[JSON] = Registry()
            registry = registry.with_resources([(uri, resource)])
            return registry.crawl().resolver(uri)
        except (AttributeError, TypeError, ValueError):  # parts that are not schemas
            return None

    def _resolve(self, uri: str) -> Shape:
        """Returns the shape of a reference that is intersected with other keywords."""
        self._define(uri)
        if uri not in self._definitions:
            raise RefusalError(f"circular references with sibling keys are not supported: {uri}")
        return self._definitions[uri]

    def _define(self, uri: str) -> None:
        if uri in self._begun:
            return
        self._begun.add(uri)
        target = self._target(uri)
        self._definitions[uri] = self._read(target, _draft_of(target, NEWEST_DRAFT))

    def _target(self, uri: str) -> JSON:
        try:
            if self._resolver is None:
                raise LookupError
            return self._resolver.lookup(uri).contents
        except (Unresolvable, LookupError, ValueError, TypeError, AttributeError):
            pass
        try:
            return target_of_pointer(self._root, uri)
        except (LookupError, ValueError, TypeError):
            raise RefusalError(f"Resource '{uri}' is not present in a registry") from None

    def _read(self, schema: JSON, draft: int) -> Shape:
        if schema is True:
            return ANY
        if schema is False:
            return FALSE
        if not isinstance(schema, dict):
            raise RefusalError("schema must be an object or boolean")
        with self._work.step():
            return shapes.normalized(self._read_keywords(schema, _draft_of(schema, draft)))

    def _read_keywords(self, schema: Raw, draft: int) -> Shape:
        missing = _missing_keywords(schema, draft)
        if missing:
            names = ", ".join(f'"{name}"' for name in sorted(missing))
            raise RefusalError(f"Unimplemented keys: [{names}]")
        result: Shape = ANY
        current: dict[str, JSON] = {}
        for keyword, value in schema.items():
            if keyword in IN_PLACE_KEYWORDS:
                result = self._include_current(result, current, schema, draft=draft)
                current = {}
                result = self._apply(result, keyword, value, draft=draft)
            elif keyword in IMPLEMENTED_KEYWORDS:
                current[keyword] = value
        return self._include_current(result, current, schema, draft=draft)

    def _include_current(
        self, result: Shape, current: dict[str, JSON], schema: Raw, *, draft: int
    ) -> Shape:
        """Returns the intersection with the keywords before a keyword that is applied in place."""
        if not current:
            return result
        for keyword, other in (("additionalProperties", "properties"), ("items", "prefixItems")):
            if keyword in current and other in schema:
                current.setdefault(other, _as_true(schema[other], other))
        if "type" in schema:
            current["type"] = schema["type"]
        return self._intersection.of(result, self._typed(current, draft))

    def _apply(self, result: Shape, keyword: str, value: JSON, *, draft: int) -> Shape:
        if keyword == "const":
            return self._intersection.of(result, _constant(value))
        if keyword == "$ref":
            return self._include_reference(result, value)
        if not isinstance(value, list):
            raise RefusalError(f"{keyword} must be an array")
        if keyword == "enum":
            constants = list(map(_constant, value[:MAX_ENUM_VALUES]))
            return self._intersection.of(result, shapes.AnyOf(constants))
        options = [self._read(option, draft) for option in value]
        if keyword == "allOf":
            for option in options:
                result = self._intersection.of(result, option)
            return result
        if keyword == "anyOf":
            return self._intersection.of(result, shapes.AnyOf(options))
        return self._intersection.of(result, shapes.OneOf(options))

    def _include_reference(self, result: Shape, reference: JSON) -> Shape:
        if not isinstance(reference, str):
            raise RefusalError(f"$ref must be a string, got {reference}")
        if isinstance(result, shapes.AnyValue):
            self._define(reference)
            return shapes.Reference(reference)
        return self._intersection.of(result, self._resolve(reference))

    def _typed(self, schema: Raw, draft: int) -> Shape:
        kinds = schema.get("type", list(TYPES))
        if isinstance(kinds, str):
            return self._of_type(kinds, schema, draft)
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise RefusalError("type must be a string or array of strings")
        options = [self._of_type(str(kind), schema, draft) for kind in kinds]
        if len(options) == 1:
            return options[0]
        return shapes.AnyOf(options)

    def _of_type(self, kind: str, schema: Raw, draft: int) -> Shape:
        match kind:
            case "null":
                return shapes.Null()
            case "boolean":
                return shapes.Boolean()
            case "number" | "integer":
                return _number_of(schema, kind == "integer")
            case "string":
                return _text_of(schema)
            case "array":
                return self._array_of(schema, draft)
            case "object":
                return self._object_of(schema, draft)
        raise RefusalError(f"Invalid type: {kind}")

    def _array_of(self, schema: Raw, draft: int) -> Shape:
        prefix = schema.get("prefixItems", [])
        items = schema.get("items")
        if draft <= 2019 or "additionalItems" in schema or isinstance(items, list):
            prefix = []
            if isinstance(items, list):
                prefix = items
                items = schema.get("additionalItems")
        if not isinstance(prefix, list):
            raise RefusalError(f"Expected array for 'prefixItems', got {prefix}")
        return shapes.Array(
            _count_of(schema, "minItems") or 0,
            _count_of(schema, "maxItems"),
            prefix=[self._read(item, draft) for item in prefix],
            items=None if items is None else self._read(items, draft),
        )

    def _object_of(self, schema: Raw, draft: int) -> Shape:
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise RefusalError("properties must be an object")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise RefusalError(f"Expected array of strings for 'required', got {required}")
        additional = None
        if "additionalProperties" in schema:
            additional = self._read(schema["additionalProperties"], draft)
        return shapes.object_of(
            shapes.Object(
                {name: self._read(value, draft) for name, value in properties.items()},
                additional=additional,
                required=frozenset(map(str, required)),
                min_properties=_count_of(schema, "minProperties") or 0,
                max_properties=_count_of(schema, "maxProperties"),
            )
        )

    def _write(self, shape: Shape, written: set[str]) -> None:
        """Checks that a grammar can be written. Raises ImpossibleError for no values."""
        with self._work.step():
            match shape:
                case shapes.NoValue(reason):
                    raise ImpossibleError(reason)
                case shapes.Number():
                    _write_number(shape)
                case shapes.Text():
                    _write_text(shape)
                case shapes.Array():
                    self._write_array(shape, written)
                case shapes.Object():
                    self._write_object(shape, written)
                case shapes.AnyOf(options):
                    self._write_any_of(options, written)
                case shapes.OneOf():
                    raise RefusalError(ONE_OF_MESSAGE)
                case shapes.Reference(uri):
                    self._write_definition(uri, written)

    def _write_definition(self, uri: str, written: set[str]) -> None:
        """Checks a definition once; one without a value fails the document."""
        if uri in written:
            return
        written.add(uri)
        try:
            self._write(self._definitions.get(uri, ANY), written)
        except ImpossibleError as error:
            raise RefusalError(f"Unsatisfiable schema: {error}\n  while processing {uri}") from None

    def _is_possible(self, shape: Shape, written: set[str]) -> bool:
        try:
            self._write(shape, written)
        except ImpossibleError:
            return False
        return True

    def _write_any_of(self, options: Sequence[Shape], written: set[str]) -> None:
        if not any([self._is_possible(option, written) for option in options]):
            raise ImpossibleError("All options in anyOf are unsatisfiable")

    def _write_array(self, shape: shapes.Array, written: set[str]) -> None:
        limit = shape.max_items
        if limit is not None and shape.min_items > limit:
            raise ImpossibleError(
                f"minItems ({shape.min_items}) is greater than maxItems ({limit})"
            )
        has_items = self._is_possible(shape.items or ANY, written)
        if not has_items and len(shape.prefix) < shape.min_items:
            raise ImpossibleError("required item is unsatisfiable")
        shown = shape.prefix if limit is None else shape.prefix[:limit]
        for place, item in enumerate(shown):
            if not self._is_possible(item, written):
                if place < shape.min_items:
                    raise ImpossibleError(f"prefixItems[{place}] is unsatisfiable")
                break

    def _write_object(self, shape: shapes.Object, written: set[str]) -> None:
        optional_count = 0
        required_count = 0
        for name in (*shape.properties, *(shape.required - shape.properties.keys())):
            if self._is_possible(shape.shape_of(name), written):
                required_count += name in shape.required
                optional_count += name not in shape.required
            elif name in shape.required:
                raise ImpossibleError(f"required property '{name}' is unsatisfiable")
        min_count = max(0, shape.min_properties - required_count)
        limit = shape.max_properties
        max_count = None if limit is None else max(0, limit - required_count)
        if optional_count and (min_count or limit is not None):
            is_closed = isinstance(shape.additional, shapes.NoValue)
            if min_count <= 1 and max_count in (None, 1) and is_closed:
                return
            raise RefusalError(COUNTED_MESSAGE)
        has_more = self._is_possible(shape.additional or ANY, written)
        if min_count and (not has_more or max_count == 0):
            raise ImpossibleError(
                f"minProperties ({min_count}) is greater than number of properties"
            )


def target_of_pointer(root: JSON, uri: str) -> JSON:
    """Returns the part of a document at the JSON pointer in a URI.

    Raises:
        LookupError, ValueError: There is no such part.
    """
    base, _, pointer = uri.partition("#")
    if base or not pointer.startswith("/"):
        raise LookupError(uri)
    target = root
    for name in unquote(pointer[1:]).split("/"):
        if isinstance(target, list):
            target = target[int(name)]
        elif isinstance(target, dict):
            target = target[name.replace("~1", "/").replace("~0", "~")]
        else:
            raise LookupError(uri)
    return target


def _draft_of(schema: JSON, default: int) -> int:
    """Returns the draft that a schema names; without one, the newest draft."""
    if isinstance(schema, dict) and isinstance(schema.get("$schema"), str):
        return DRAFTS.get(str(schema["$schema"]).rstrip("#"), NEWEST_DRAFT)
    return default


def _missing_keywords(schema: Raw, draft: int) -> list[str]:
    known: set[str] = set()
    for first_draft, keywords in MISSING_KEYWORDS.items():
        if draft >= first_draft:
            known |= keywords
    return [keyword for keyword in schema if keyword in known]


def _as_true(value: JSON, keyword: str) -> JSON:
    """Returns properties or items whose schemas are replaced by True."""
    if keyword == "properties" and isinstance(value, dict):
        return dict.fromkeys(value, True)
    if keyword == "prefixItems" and isinstance(value, list):
        return [True] * len(value)
    raise RefusalError(f"{keyword} must be an {'object' if keyword == 'properties' else 'array'}")


def _constant(value: JSON) -> Shape:
    if value is None:
        return shapes.Null()
    if isinstance(value, bool):
        return shapes.Boolean(value)
    if isinstance(value, int | float):
        return shapes.Number(value, value, is_integer=isinstance(value, int))
    if isinstance(value, str):
        return shapes.Text(literal=value)
    if isinstance(value, list):
        return shapes.Array(len(value), len(value), prefix=list(map(_constant, value)), items=FALSE)
    properties = {name: _constant(member) for name, member in value.items()}
    return shapes.Object(properties, additional=FALSE, required=frozenset(properties))


def _float_of(schema: Raw, keyword: str) -> float | None:
    if keyword not in schema:
        return None
    value = schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusalError(f"Expected f64 for '{keyword}', got {value}")
    if abs(value) > sys.float_info.max:
        raise RefusalError("number out of range")
    return value


def _count_of(schema: Raw, keyword: str) -> int | None:
    if keyword not in schema:
        return None
    value = schema[keyword]
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise RefusalError(f"Expected positive integer for '{keyword}', got {value}")
    return value


def _number_of(schema: Raw, is_integer: bool) -> Shape:
    limits: dict[str, float | None] = {}
    for keyword, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        limits[inclusive] = _float_of(schema, inclusive)
        if isinstance(schema.get(keyword), bool):  # as in Draft 4
            limits[keyword] = limits[inclusive] if schema[keyword] else None
        else:
            limits[keyword] = _float_of(schema, keyword)
    multiple = _float_of(schema, "multipleOf")
    if multiple is not None:
        _check_digits(abs(float(multiple)))
    return shapes.Number(
        limits["minimum"],
        limits["maximum"],
        above=limits["exclusiveMinimum"],
        below=limits["exclusiveMaximum"],
        is_integer=is_integer,
        multiple=None if multiple is None else abs(multiple),
    )


def _check_digits(multiple: float) -> None:
    """Raises RefusalError if the decimal digits do not fit 32 bits."""
    while isfinite(multiple) and multiple != int(multiple):
        multiple *= 10
    if multiple > MAX_MULTIPLE_COEFFICIENT:
        raise RefusalError(f"Value for 'multipleOf' has too many digits: {multiple:.0f}")


def _text_of(schema: Raw) -> Shape:
    pattern = schema.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise RefusalError(f"Expected string for 'pattern', got {pattern}")
    name = schema.get("format")
    if name is not None:
        if not isinstance(name, str):
            raise RefusalError(f"Expected string for 'format', got {name}")
        if name not in FORMATS:
            raise RefusalError(f"Unknown format: {name}")
    return shapes.Text(
        _count_of(schema, "minLength") or 0,
        _count_of(schema, "maxLength"),
        patterns=() if pattern is None else (pattern,),
    )


def _write_number(shape: shapes.Number) -> None:
    fault = shapes.number_fault(shape)
    if fault:
        raise ImpossibleError(fault)
    shapes.check_digits(shape)


def _write_text(shape: shapes.Text) -> None:
    limit = shape.max_length
    if limit is not None and shape.min_length > limit:
        raise ImpossibleError(f"minLength ({shape.min_length}) is greater than maxLength ({limit})")
    for pattern in shape.patterns:
        if not llguidance_accepts(pattern):
            raise RefusalError("regex parse error")
        if shape.literal is not None and not _matches(pattern, shape.literal):
            raise ImpossibleError(f"Regex is empty: /{pattern}/")
        if limit is not None and limit < _min_length(pattern):
            raise ImpossibleError(f"Regex is empty: /{pattern}/")
    if shape.literal is not None:
        length = len(shape.literal)
        if length < shape.min_length or limit is not None and length > limit:
            raise ImpossibleError(f'Constant "{shape.literal}" doesn\'t match length constraints')


def _min_length(pattern: str) -> int:
    """Returns the length of the shortest match; 0 for a pattern that is not known here."""
    try:
        return Pattern(pattern).min_length
    except SchemaError:
        return 0


def _matches(pattern: str, text: str) -> bool:
    """Returns True if a part of `text` matches, or if that cannot be decided."""
    try:
        return Pattern(pattern).matches(text, WorkBudget(MAX_MATCH_STEPS))
    except SchemaError:
        return True
