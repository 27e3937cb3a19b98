"""Checks the objects that options take, as vLLM's parser does with pydantic.

`python -m scripts.object_schemas` writes objects.json, which has a JSON Schema of each object. Two
keywords are not in the standard: `anyCase` ignores the case of the texts of an `enum`, and `dashes`
accepts dashes in place of underscores.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from config.declaration import closest, shown, suggestion
from config.flag_words import WrongValueError
from config.sizes import COUNT_UNITS
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.object_conflicts import conflicts_of
from vllm_facts.option import VALID_JSON
from vllm_facts.option_names import read_shorthands

FILE = Path(__file__).with_name("objects.json")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_SIZE = re.compile(r"\b(\d{1,18})(\.\d{1,9})?([kKmMgGtT])\b", re.ASCII)
_WORDS = ("true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n")
_INTEGER = re.compile(r"\s*[+-]?\d{1,4300}(\.0+)?\s*", re.ASCII)

Schema = Mapping[str, object]

_OBJECT: Schema = {"type": "object"}
_OBJECT_OR_NULL: Schema = {"anyOf": [_OBJECT, {"type": "null"}]}
PLAIN_OBJECTS: Mapping[str, Schema] = {
    "additional-config": _OBJECT,
    "custom-histogram-buckets": _OBJECT_OR_NULL,
    "default-mm-loras": {"anyOf": [*(_OBJECT, {"type": "null"}), {"type": "array", "maxItems": 0}]},
    "diffusion-config": _OBJECT_OR_NULL,
    "hf-overrides": _OBJECT,
    "limit-mm-per-prompt": {
        "anyOf": [
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "integer"}, _OBJECT]},
            },
            {"type": "null"},
        ]
    },
    "media-io-kwargs": {
        "anyOf": [{"type": "object", "additionalProperties": _OBJECT}, {"type": "null"}]
    },
    "model-class-overrides": {"type": "object", "additionalProperties": {"type": "string"}},
    "override-generation-config": _OBJECT,
}
"""Options whose objects vLLM's parser accepts unread. vLLM ends later for another value."""


class _InvalidError(Exception):
    """A value breaks its schema; the message has the path of the value and the rule."""

    def __init__(self, message: str, unknown_field: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.unknown_field = unknown_field
        self.fix = fix
        """Similar name of a field."""


def read_object(option: str, version: str, text: str) -> str:
    """Returns an option's JSON text with plain numbers for sizes such as 8k.

    Raises:
        WrongValueError: vLLM's parser would reject the text.
    """
    schema = _schemas(version).get(option)
    if schema is not None:
        text = with_plain_numbers(text)
    try:
        value = decode_untrusted(text, decoder=python_json)
    except UntrustedDataError:
        raise WrongValueError(f"must be {VALID_JSON}", rule="valid JSON") from None
    if schema is None:
        schema = PLAIN_OBJECTS.get(option, {})
    try:
        _check(schema, value, "")
    except _InvalidError as error:
        raise _wrong_field(option, error, version) from None
    if isinstance(value, dict):
        for flaw in conflicts_of(option, value):
            raise WrongValueError(f"is wrong: {flaw}")
    return text


def _wrong_field(option: str, error: _InvalidError, version: str) -> WrongValueError:
    """Returns the error for a wrong field, with the release that removed it, if one did."""
    message = f"is wrong: {error}"
    if not error.unknown_field:
        return WrongValueError(message)
    from vllm_facts.removal import removal_of, replacement_of  # with the tables of all versions

    form = f"--{option}.{error.unknown_field}"
    removal = removal_of(form, version)
    if removal:
        message += f"; {removal}"
    fix = error.fix or replacement_of(form, version)
    return WrongValueError(message, rule="known field", fix=fix)


def with_plain_numbers(text: str) -> str:
    """Returns JSON text with plain numbers in place of numbers with a unit, as in vLLM.

    Strings are unchanged.
    """
    parts = _QUOTED.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _SIZE.sub(lambda match: plain_number(match[0]), parts[index])
    return "".join(parts)


def plain_number(text: str) -> str:
    """Returns a number with a unit without it, such as 8000 for 8k; other texts as they are."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return text
    number, fraction, unit = match.groups()
    if fraction is None:
        return str(int(number) * COUNT_UNITS[unit])
    if not unit.islower():
        return text  # vLLM rejects it
    return str(int(float(number + fraction) * COUNT_UNITS[unit]))


@cache
def _schemas(version: str) -> dict[str, Schema]:
    """Returns the schemas of a version: its own, and unchanged schemas of earlier versions.

    A constant of the process, which few command lines need.
    """
    schemas: dict[str, Schema] = {}
    by_version = msgspec.json.decode(FILE.read_bytes(), type=dict[str, dict[str, Schema | None]])
    for name, changes in by_version.items():
        for option, schema in changes.items():
            if schema is None:
                schemas.pop(option, None)
            else:
                schemas[option] = schema
        if name == version:
            break
    for key, names in read_shorthands(version).items():
        option, *path = key.removeprefix("--").split(".")
        if option in schemas:
            schemas[option] = _with_names(schemas[option], path, names)
    return schemas


def _with_names(schema: Schema, path: Sequence[str], names: Sequence[str]) -> Schema:
    """Returns a schema that accepts names in place of the value at a path."""
    if not path:
        members = schema.get("anyOf", [schema])
        assert isinstance(members, list)
        known_members = [member for member in members if member] or [{"type": "null"}]
        return {"anyOf": [*known_members, {"enum": names}]}
    members = schema.get("anyOf")
    if isinstance(members, list):
        return {**schema, "anyOf": [_with_names(member, path, names) for member in members]}
    properties = schema.get("properties")
    if not isinstance(properties, dict) or path[0] not in properties:
        return schema
    inner = _with_names(properties[path[0]], path[1:], names)
    return {**schema, "properties": {**properties, path[0]: inner}}


def _check(schema: Schema, value: object, path: str) -> None:
    """Raises _InvalidError for a value that does not fit its schema."""
    members = schema.get("anyOf")
    if isinstance(members, list):
        _check_any(members, value, path)
        return
    if "enum" in schema or "const" in schema:
        _check_choice(schema, value, path)
        return
    kind = schema.get("type")
    if kind == "object":
        _check_fields(schema, value, path)
    elif kind == "array":
        _check_items(schema, value, path)
    elif isinstance(kind, str) and not _READERS[kind](value):
        raise _InvalidError(f"{path or 'the value'} must be {_NAMES[kind]}, got {shown(value)}")
    else:
        _check_limits(schema, value, path)


def _check_any(members: list[Schema], value: object, path: str) -> None:
    errors = []
    for member in members:
        try:
            _check(member, value, path)
        except _InvalidError as error:
            errors.append(error)
        else:
            return
    if isinstance(value, str) and "enum" in members[-1]:
        raise errors[-1]
    raise errors[0]


def _check_choice(schema: Schema, value: object, path: str) -> None:
    choices = schema.get("enum", [schema.get("const")])
    assert isinstance(choices, list)
    if isinstance(value, str):
        word = _folded(schema, value)
        if any(isinstance(choice, str) and _folded(schema, choice) == word for choice in choices):
            return
    elif any(choice == value and type(choice) is not str for choice in choices):
        return
    names = ", ".join(str(choice) for choice in choices if choice is not None)
    raise _InvalidError(f"{path} must be one of {names}, got {shown(value)}")


def _folded(schema: Schema, word: str) -> str:
    if schema.get("anyCase"):
        word = word.upper()
    if schema.get("dashes"):
        word = word.replace("-", "_")
    return word


def _check_fields(schema: Schema, value: object, path: str) -> None:
    if not isinstance(value, dict):
        raise _InvalidError(f"{path or 'the value'} must be an object, got {shown(value)}")
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    others = schema.get("additionalProperties", True)
    prefix = f"{path}." if path else ""
    for name, item in value.items():
        if name in properties:
            _check(properties[name], item, prefix + name)
        elif others is False:
            hint = suggestion(name, names=properties)
            field = prefix + name
            fix = closest(name, properties)
            raise _InvalidError(f"unknown field `{field}`{hint}", unknown_field=field, fix=fix)
        elif isinstance(others, dict):
            _check(others, item, prefix + name)
    required = schema.get("required", [])
    assert isinstance(required, list)
    for name in required:
        if name not in value:
            raise _InvalidError(f"{prefix}{name} is required")
    minimum = schema.get("minProperties")
    if isinstance(minimum, int) and len(value) < minimum:
        raise _InvalidError(f"{path} must not be empty")


def _check_items(schema: Schema, value: object, path: str) -> None:
    if not isinstance(value, list):
        raise _InvalidError(f"{path or 'the value'} must be a list, got {shown(value)}")
    minimum = schema.get("minItems")
    maximum = schema.get("maxItems")
    if isinstance(minimum, int) and len(value) < minimum:
        raise _InvalidError(f"{path} must have at least {minimum} items")
    if isinstance(maximum, int) and len(value) > maximum:
        raise _InvalidError(f"{path} must have at most {maximum} items")
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            _check(items, item, f"{path}[{index}]")


def _check_limits(schema: Schema, value: object, path: str) -> None:
    for keyword, (words, is_inside) in _LIMITS.items():
        limit = schema.get(keyword)
        if isinstance(limit, int | float) and not is_inside(_number(value), limit):
            raise _InvalidError(f"{path} must be {words} {limit:g}, got {shown(value)}")


def _number(value: object) -> float:
    if isinstance(value, int | float | str):
        with suppress(ValueError, OverflowError):
            return float(value)
    return float("nan")


def _is_integer(value: object) -> bool:
    if isinstance(value, str):
        return _INTEGER.fullmatch(value) is not None
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _is_boolean(value: object) -> bool:
    if isinstance(value, str):
        return value.lower() in _WORDS
    return isinstance(value, int | float) and value in (0, 1)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_null(value: object) -> bool:
    return value is None


_READERS: Mapping[str, Callable[[object], bool]] = {
    "string": _is_text,
    "integer": _is_integer,
    "number": _is_number,
    "boolean": _is_boolean,
    "null": _is_null,
}
"""Type -> whether pydantic's lax mode converts a value of JSON to it."""
_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_LIMITS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", lambda value, limit: value >= limit),
    "exclusiveMinimum": ("greater than", lambda value, limit: value > limit),
    "maximum": ("at most", lambda value, limit: value <= limit),
    "exclusiveMaximum": ("less than", lambda value, limit: value < limit),
}
