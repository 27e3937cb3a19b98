"""Decides whether xgrammar 0.2 can make a grammar of a schema.

xgrammar reads the first keyword that it finds in a fixed order, and ignores keywords that it does
not know or that follow. Any subschema that it cannot read fails the whole schema. The rules are
those of its converter, `cpp/json_schema_converter.cc`.
"""

from collections.abc import Callable, Mapping
from math import floor

from app.extensions.forms.schema.backends.features import XGRAMMAR_FORMATS
from app.extensions.forms.schema.backends.patterns import xgrammar_accepts
from app.extensions.forms.schema.backends.work import RefusalError, Work
from app.extensions.forms.schema.keywords import JSON

MAX_INT64 = 2**63 - 1
MIN_INT64 = -(2**63)
FLOAT_LIMIT = 9223372036854776000.0
"""A bound of an integer that is a float has to be smaller than this power of two."""
MAX_MULTIPLE = 1024
"""Largest ``multipleOf`` of an integer that is not ignored, and the widest range with one."""
OBJECT_KEYWORDS = ("properties", "additionalProperties", "unevaluatedProperties")
"""Keywords of an object without a type."""
ARRAY_KEYWORDS = ("items", "prefixItems", "unevaluatedItems")
"""Keywords of an array without a type."""

Raw = Mapping[str, JSON]


class XgrammarCheck:
    """Checks one document."""

    def __init__(self, root: JSON, work: Work) -> None:
        self._root = root
        self._work = work
        self.compiles = True
        """False if the converter accepts the schema, but the compiler of its result fails."""
        self._checked_references: set[str] = set()
        self._unwritten = 0
        """Levels of schemas whose grammar is not written, so that references are not followed."""
        self._readers: Mapping[str, Callable[[Raw], None]] = {
            "integer": _check_integer,
            "number": _check_number,
            "string": self._check_string,
            "array": self._check_array,
            "object": self._check_object,
        }

    def check(self) -> None:
        """Checks the whole document. Raises RefusalError."""
        self._check_schema(self._root)

    def _check_schema(self, schema: JSON, default_type: str | None = None) -> None:
        with self._work.step():
            if schema is False:
                raise RefusalError("Schema 'false' cannot accept any value")
            if schema is True:
                return
            if not isinstance(schema, dict):
                raise RefusalError("Schema should be an object or bool")
            self._check_keywords(schema, default_type)

    def _check_keywords(self, schema: Raw, default_type: str | None) -> None:
        if "$ref" in schema:
            self._check_reference(schema["$ref"])
        elif "const" in schema:
            return
        elif "enum" in schema:
            if not schema["enum"] or not isinstance(schema["enum"], list):
                raise RefusalError("enum must be an array that is not empty")
        elif not self._check_choice(schema):
            if "type" in schema or default_type is not None:
                self._check_type(schema, schema.get("type", default_type))
            elif any(keyword in schema for keyword in OBJECT_KEYWORDS):
                self._check_object(schema)
            elif any(keyword in schema for keyword in ARRAY_KEYWORDS):
                self._check_array(schema)

    def _check_choice(self, schema: Raw) -> bool:
        """Checks the first list of schemas; returns False without one."""
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                options = _list_of(schema, keyword)
                is_unwritten = keyword == "allOf" and len(options) != 1
                self._unwritten += is_unwritten
                for option in options:
                    self._check_schema(option)
                self._unwritten -= is_unwritten
                return True
        return False

    def _check_type(self, schema: Raw, kind: JSON) -> None:
        if isinstance(kind, list):
            untyped = {name: value for name, value in schema.items() if name != "type"}
            if not kind:
                self._check_schema(untyped)
            for name in kind:
                if not isinstance(name, str):
                    raise RefusalError("type must be a string or an array of strings")
                self._check_schema({**untyped, "type": name})
        elif not isinstance(kind, str):
            raise RefusalError("Type should be a string")
        elif kind in self._readers:
            self._readers[kind](schema)
        elif kind not in ("boolean", "null"):
            raise RefusalError(f'Unsupported type "{kind}"')

    def _check_array(self, schema: Raw) -> None:
        prefix = _list_of(schema, "prefixItems")
        for item in prefix:
            if not isinstance(item, dict):
                raise RefusalError("prefixItems must be an array of objects or booleans")
            self._check_schema(item)
        allows_more = False
        for keyword in ("items", "unevaluatedItems"):
            if keyword in schema:
                items = schema[keyword]
                if not isinstance(items, bool | dict):
                    raise RefusalError(f"{keyword} must be a boolean or an object")
                if items is not False:
                    self._check_schema(items)
                    allows_more = True
                break
        _check_item_counts(schema, len(prefix), allows_more)

    def _check_object(self, schema: Raw) -> None:
        properties = _object_of(schema, "properties")
        for value in properties.values():
            self._check_schema(value)
        required = _list_of(schema, "required")
        if not all(isinstance(name, str) for name in required):
            raise RefusalError("required must be an array of strings")
        patterns = _object_of(schema, "patternProperties")
        for pattern, value in patterns.items():
            if not xgrammar_accepts(pattern):
                raise RefusalError("a pattern of patternProperties is not supported")
            self._check_schema(value)
        self._check_names(schema)
        allows_more = bool(patterns) or "propertyNames" in schema
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            if keyword in schema:
                if not isinstance(schema[keyword], bool):
                    self._check_schema(schema[keyword])
                allows_more = allows_more or schema[keyword] is not False
                break
        self._check_counts(schema, len(set(map(str, required))))
        if not allows_more and _integer(schema, "minProperties", 0) > len(properties):
            raise RefusalError(
                "minProperties is greater than the number of properties, but additional properties"
                " aren't allowed"
            )

    def _check_names(self, schema: Raw) -> None:
        if "propertyNames" in schema:
            names = schema["propertyNames"]
            if not isinstance(names, dict):
                raise RefusalError("propertyNames must be an object")
            if isinstance(names.get("type"), str) and names["type"] != "string":
                raise RefusalError("propertyNames must be an object that validates string")
            self._check_schema(names, "string")

    def _check_counts(self, schema: Raw, required_count: int) -> None:
        min_properties = _integer(schema, "minProperties", 0)
        max_properties = _integer(schema, "maxProperties", MAX_INT64)
        if min_properties < 0 or max_properties < 0:
            raise RefusalError("minProperties and maxProperties must be non-negative integers")
        if max(min_properties, required_count) > max_properties:
            raise RefusalError("maxProperties is too small")

    def _check_string(self, schema: Raw) -> None:
        for keyword in ("format", "pattern"):
            if not isinstance(schema.get(keyword, ""), str):
                raise RefusalError(f"{keyword} must be a string")
        min_length = _integer(schema, "minLength", 0)
        max_length = _integer(schema, "maxLength", -1)
        if max_length != -1 and min_length > max_length:
            raise RefusalError(f"minLength {min_length} is greater than maxLength {max_length}")
        pattern = schema.get("pattern")
        is_used = schema.get("format") not in XGRAMMAR_FORMATS
        if is_used and isinstance(pattern, str) and not xgrammar_accepts(pattern):
            raise RefusalError("the pattern is not supported")
        if min_length < 0:
            self.compiles = False

    def _check_reference(self, reference: JSON) -> None:
        """Checks the target; a reference that is no JSON pointer stands for any value."""
        if not isinstance(reference, str):
            raise RefusalError("$ref must be a string")
        if self._unwritten or reference in self._checked_references:
            return
        self._checked_references.add(reference)
        target = self._root
        if reference.startswith("#/"):
            for name in filter(None, reference[2:].split("/")):  # escapes are not decoded
                if not isinstance(target, dict) or name not in target:
                    raise RefusalError(f"Cannot find field {name} in {reference}")
                target = target[name]
            self._check_schema(target)


def _check_item_counts(schema: Raw, prefix_count: int, allows_more: bool) -> None:
    min_items = max(0, _integer(schema, "minItems", 0), _integer(schema, "minContains", 0))
    max_items = _integer(schema, "maxItems", -1)
    if "maxItems" in schema:
        if max_items < 0:
            raise RefusalError("maxItems must be a non-negative integer")
        if min_items > max_items:
            raise RefusalError(f"minItems is greater than maxItems: {min_items} > {max_items}")
        if max_items < prefix_count:
            raise RefusalError("maxItems is less than the number of prefixItems")
    if not allows_more and prefix_count < min_items:
        raise RefusalError("minItems is greater than the number of prefixItems")


def _list_of(schema: Raw, keyword: str) -> list[JSON]:
    value = schema.get(keyword, [])
    if not isinstance(value, list):
        raise RefusalError(f"{keyword} must be an array")
    return value


def _object_of(schema: Raw, keyword: str) -> dict[str, JSON]:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise RefusalError(f"{keyword} must be an object")
    return value


def _integer(schema: Raw, keyword: str, default: int) -> int:
    value = schema.get(keyword, default)
    if type(value) is not int or not MIN_INT64 <= value <= MAX_INT64:
        raise RefusalError(f"{keyword} must be an integer")
    return value


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(schema: Raw, keyword: str) -> float | None:
    if keyword not in schema:
        return None
    value = schema[keyword]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RefusalError("Value must be a number")
    return value


def _integer_bound(schema: Raw, keyword: str) -> int | None:
    value = _number(schema, keyword)
    if value is None:
        return None
    if isinstance(value, int) and MIN_INT64 <= value <= MAX_INT64:
        return value
    if not -FLOAT_LIMIT < value < FLOAT_LIMIT:
        raise RefusalError("Integer exceeds the 64-bit limits")
    if value != floor(value):
        raise RefusalError("Integer constraint must be a whole number")
    return int(value)


def _check_multiple(schema: Raw) -> float | None:
    multiple = _number(schema, "multipleOf")
    if multiple is not None and multiple <= 0:
        raise RefusalError("multipleOf must be greater than 0")
    return multiple


def _check_integer(schema: Raw) -> None:
    multiple = _check_multiple(schema)
    lows: list[int] = []
    highs: list[int] = []
    for keyword, shift in (("minimum", 0), ("exclusiveMinimum", 1)):
        low = _integer_bound(schema, keyword)
        if low is not None:
            lows.append(low + shift)
    for keyword, shift in (("maximum", 0), ("exclusiveMaximum", -1)):
        high = _integer_bound(schema, keyword)
        if high is not None:
            highs.append(high + shift)
    start = max(lows, default=MIN_INT64)
    end = min(highs, default=MAX_INT64)
    if start > end or start > MAX_INT64 or end < MIN_INT64:
        raise RefusalError("Invalid range: minimum greater than maximum")
    if multiple is None or multiple != floor(multiple) or multiple > MAX_MULTIPLE:
        return
    is_narrow = bool(lows and highs) and end - start < MAX_MULTIPLE
    if is_narrow and end // int(multiple) * int(multiple) < start:
        raise RefusalError("range contains no multipleOf value")


def _check_number(schema: Raw) -> None:
    _check_multiple(schema)
    minimum = _number(schema, "minimum")
    maximum = _number(schema, "maximum")
    above = _number(schema, "exclusiveMinimum")
    below = _number(schema, "exclusiveMaximum")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise RefusalError("Invalid range: empty range")
    for low, high in ((minimum, below), (above, maximum), (above, below)):
        if low is not None and high is not None and low >= high:
            raise RefusalError("Invalid range: empty range")
