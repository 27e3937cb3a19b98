"""Converts the arguments of a call to the types of the tool's schema, as vLLM's parsers do."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from app.core.engine.request import ToolFunction
from config.untrusted import decode_untrusted, python_json

ALIASES: Final = {
    alias: name
    for name, aliases in {
        "string": "str text varchar char enum",
        "integer": "int int32 int64 uint uint32 uint64 long short unsigned",
        "number": "float float32 float64 double",
        "boolean": "bool",
        "object": "dict",
        "array": "arr list sequence",
    }.items()
    for alias in aliases.split()
}
JSON_TYPES: Final = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)
"""A bool is an int, too, so that it comes first."""
MISSING: Final = object()
HALF_SURROGATE: Final = re.compile("[\ud800-\udfff]")
MAX_BRANCHES = 30
"""Branches of a schema that are searched for types."""
MAX_VALUES = 200
"""Values of enums that are searched for types."""
Properties = Mapping[str, object]


def write_json(value: object) -> str:
    """Returns JSON; only half surrogates, which cannot be sent, are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii():
        return text
    return HALF_SURROGATE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):x}"


def properties_of(tool: ToolFunction) -> Properties:
    """Returns the schemas of the parameters of a tool."""
    if isinstance(tool.schema, Mapping):
        properties = tool.schema.get("properties")
        if isinstance(properties, Mapping):
            return properties
    return {}


class ToolTypes:
    """The types of the parameters of tools, by the names of the tools. Other names have none."""

    def __init__(self, tools: Sequence[ToolFunction]) -> None:
        self._properties: dict[str, Properties] = {}
        for tool in tools:
            if not self._properties.get(tool.name):
                self._properties[tool.name] = properties_of(tool)
        self._text_fields: dict[str, frozenset[str]] = {}

    def properties(self, name: str) -> Properties:
        """Returns the schemas of the parameters of a tool."""
        return self._properties.get(name, {})

    def text_fields(self, name: str) -> frozenset[str] | None:
        """Returns the parameters that stay texts; None for a tool without a schema."""
        properties = self.properties(name)
        if not properties:
            return None
        fields = self._text_fields.get(name)
        if fields is None:
            fields = frozenset(
                field for field, schema in properties.items() if types_of(schema) == {"string"}
            )
            self._text_fields[name] = fields
        return fields


def types_of(schema: object) -> set[str]:
    """Returns the names of the types that a schema allows; a text if it names none.

    Of a schema with very many branches and values, the first ones count.
    """
    types: set[str] = set()
    schemas = deque([schema])
    values = MAX_VALUES
    for _ in range(MAX_BRANCHES):
        if not schemas:
            break
        branch = schemas.popleft()
        named_types, enum, branches = _keywords_of(branch)
        types.update(named_types)
        types.update(map(_type_name, enum[:values]))
        values -= len(enum[:values])
        schemas.extend(branches)
        if not named_types and not enum and not branches:
            types.add("string")
    return types


def _keywords_of(schema: object) -> tuple[list[str], list[object], list[object]]:
    """Returns the types, the enum and the branches that a schema names."""
    if not isinstance(schema, Mapping):
        return [], [], []
    types: list[str] = []
    named = schema.get("type")
    if isinstance(named, str):
        types = [named]
    elif isinstance(named, list):
        types = [name for name in named[:MAX_BRANCHES] if isinstance(name, str)]
    enum = schema.get("enum")
    branches: list[object] = []
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list):
            branches += schema[keyword][:MAX_BRANCHES]
    return types, enum if isinstance(enum, list) else [], branches


def _type_name(value: object) -> str:
    for python_type, name in JSON_TYPES:
        if isinstance(value, python_type):
            return name
    return "null"


def convert_text(text: str, types: set[str]) -> object:
    """Returns the value of `text` of the first of the types that it fits, else the text.

    The types are tried from null to text; without a known type the text may be any JSON.
    """
    names = set()
    for name in types:
        lower_name = name.strip().lower()
        names.add(ALIASES.get(lower_name, lower_name))
    for name in ("null", "integer", "number", "boolean", "object", "array"):
        if name in names:
            value = _convert_to(text, name)
            if value is not MISSING:
                return value
    if "string" in names:
        return text
    value = _json_value(text)
    return text if value is MISSING else value


def _convert_to(text: str, name: str) -> object:
    """Returns the value of `text` as that type; MISSING if it does not fit."""
    if name == "null":
        return None if text.lower() == "null" else MISSING
    if name == "boolean":
        words = {"true": True, "1": True, "false": False, "0": False}
        return words.get(text.lower().strip(), MISSING)
    if name in ("object", "array"):
        return _json_value(text)
    try:
        if name == "integer":
            return int(text)
        number = float(text)
    except ValueError:
        return MISSING
    if not math.isfinite(number):
        return MISSING
    if number == int(number):
        return int(number)
    return number


def _json_value(text: str) -> object:
    try:
        value = decode_untrusted(text, decoder=python_json)
        json.dumps(value, allow_nan=False)
    except (RecursionError, ValueError):
        return MISSING
    return value


def convert_arguments(arguments: str, properties: Properties) -> str:
    """Returns the JSON object `arguments` with values of the types of the schema."""
    if not properties:
        return arguments
    try:
        fields = decode_untrusted(arguments, decoder=python_json)
    except (RecursionError, ValueError):
        return arguments
    if not isinstance(fields, dict) or not _convert_fields(fields, properties):
        return arguments
    return write_json(fields)


def _convert_fields(fields: dict[str, object], properties: Properties) -> bool:
    """Converts the fields in place; returns whether one has changed."""
    has_changed = False
    for name, value in fields.items():
        schema = properties.get(name)
        if isinstance(schema, Mapping):
            converted, is_new = _convert(value, schema)
            if is_new:
                fields[name] = converted
                has_changed = True
    return has_changed


def _convert(value: object, schema: Properties) -> tuple[object, bool]:
    """Returns the converted value, and whether it differs from `value`, perhaps inside."""
    if isinstance(value, dict):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            return value, _convert_fields(value, properties)
        return value, False
    if isinstance(value, list):
        return value, _convert_items(value, schema.get("items"))
    if isinstance(value, str):
        converted = convert_text(value, types_of(schema))
        return converted, converted is not value
    converted = convert_text(json.dumps(value, ensure_ascii=False), types_of(schema))
    return converted, type(converted) is not type(value) or converted != value


def _convert_items(items: list[object], schema: object) -> bool:
    if not isinstance(schema, Mapping):
        return False
    has_changed = False
    for position, item in enumerate(items):
        converted, is_new = _convert(item, schema)
        if is_new:
            items[position] = converted
            has_changed = True
    return has_changed
