"""Decides whether Outlines 0.2 can make a regular expression of a schema.

Outlines looks for its keywords in a fixed order and reads only the first one that it finds. It
fails for a schema without any of these keywords, such as false. The rules follow
`src/json_schema/parsing.rs` of `outlines-core`.
"""

from collections.abc import Callable, Mapping

from app.extensions.forms.schema.backends.patterns import outlines_accepts
from app.extensions.forms.schema.backends.work import RefusalError, Work
from app.extensions.forms.schema.keywords import JSON

FORMATS = frozenset(["date-time", "date", "time", "uuid", "uri", "email"])
MAX_RECURSION = 3
"""References within references that are followed; a property with more is left out."""
PLAIN_TYPES = ("boolean", "null", "number", "integer")

Raw = Mapping[str, JSON]


class RecursionRefusalError(RefusalError):
    """A reference is nested too deeply."""


class OutlinesCheck:
    """Checks one document."""

    def __init__(self, root: JSON, work: Work) -> None:
        self._root = root
        self._work = work
        self._references = 0
        self._readers: Mapping[str, Callable[[Raw], None]] = {
            "properties": self._check_properties,
            "allOf": lambda schema: self._check_list(schema, "allOf"),
            "anyOf": lambda schema: self._check_list(schema, "anyOf"),
            "oneOf": lambda schema: self._check_list(schema, "oneOf"),
            "prefixItems": lambda schema: self._check_list(schema, "prefixItems"),
            "enum": _check_enum,
            "const": lambda schema: None,
            "$ref": self._check_reference,
            "type": self._check_type,
        }

    def check(self) -> None:
        """Checks the whole document. Raises RefusalError."""
        self._check_schema(self._root)

    def _check_schema(self, schema: JSON) -> None:
        with self._work.step():
            if schema == {}:
                return
            if isinstance(schema, dict):
                for keyword, check in self._readers.items():
                    if keyword in schema:
                        check(schema)
                        return
            raise RefusalError("Unsupported JSON Schema structure")

    def _check_properties(self, schema: Raw) -> None:
        properties = schema["properties"]
        if not isinstance(properties, dict):
            raise RefusalError("'properties' not found or not an object")
        for value in properties.values():
            try:
                self._check_schema(value)
            except RecursionRefusalError:
                continue

    def _check_list(self, schema: Raw, keyword: str) -> None:
        options = schema[keyword]
        if not isinstance(options, list):
            raise RefusalError(f"{keyword} must be an array")
        for option in options:
            self._check_schema(option)

    def _check_reference(self, schema: Raw) -> None:
        if self._references > MAX_RECURSION:
            raise RecursionRefusalError(f"Ref recursion limit reached: {MAX_RECURSION}")
        # The count stays raised after a wrong reference, and one with the document's name.
        self._references += 1
        reference = schema["$ref"]
        if not isinstance(reference, str):
            raise RefusalError("'$ref' must be a string")
        base, *fragments = reference.split("#")
        if len(fragments) > 1:
            raise RefusalError(f"Invalid reference format: {reference}")
        names = (fragments or [base])[0].split("/")
        name = self._root.get("$id") if isinstance(self._root, dict) else None
        if fragments and base and base != name:
            raise RefusalError(f"External references are not supported: {reference}")
        target = self._target(names)
        try:
            self._check_schema(target)
        finally:
            if not (fragments and base):
                self._references -= 1

    def _target(self, names: list[str]) -> JSON:
        target = self._root
        for name in filter(None, names):
            if not isinstance(target, dict) or name not in target:
                raise RefusalError(f"Invalid reference path: {name}")
            target = target[name]
        return target

    def _check_type(self, schema: Raw) -> None:
        kind = schema["type"]
        kinds = kind if isinstance(kind, list) else [kind]
        for name in kinds:
            if name == "string":
                _check_string(schema)
            elif name == "array":
                if _is_open(schema, "maxItems") and "items" in schema:
                    self._check_schema(schema["items"])
            elif name == "object":
                extra = schema.get("additionalProperties", True)
                if _is_open(schema, "maxProperties") and extra is not True:
                    self._check_schema(extra)
            elif name not in PLAIN_TYPES:
                raise RefusalError(f"Unsupported type: {name}")


def _is_open(schema: Raw, keyword: str) -> bool:
    """Returns False where the maximum is 0."""
    limit = schema.get(keyword)
    return type(limit) is not int or limit != 0


def _check_enum(schema: Raw) -> None:
    if not isinstance(schema["enum"], list):
        raise RefusalError("'enum' must be an array")


def _check_string(schema: Raw) -> None:
    if "maxLength" in schema or "minLength" in schema:
        low = schema.get("minLength")
        high = schema.get("maxLength")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            raise RefusalError("the maximum must be greater than or equal to the minimum")
    elif isinstance(schema.get("pattern"), str):
        if not outlines_accepts(str(schema["pattern"])):
            raise RefusalError("Regex uses an unsupported feature for structured outputs")
    elif isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
        raise RefusalError(f"Format {schema['format']} is not supported by Outlines")
