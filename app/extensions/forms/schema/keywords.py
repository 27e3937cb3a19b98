"""Keywords of JSON Schema: the types of read schemas, and the rules for keyword values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias, TypedDict, TypeGuard

from app.extensions.forms.schema.bounds import TYPES
from app.extensions.forms.schema.patterns import Pattern

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Number: TypeAlias = int | float

ANNOTATIONS = frozenset(
    [
        "$anchor",
        "$comment",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "deprecated",
        "description",
        "readOnly",
        "title",
        "writeOnly",
    ]
)
"""Keywords that do not constrain the value; they are checked, then left out."""
DYNAMIC_REFERENCES = frozenset(["$dynamicRef", "$recursiveRef"])
"""Keywords that are read as ``$ref``: the targets that they have from elsewhere are not found."""


def canonical_key(value: JSON) -> Hashable:
    """Returns a hashable that is equal exactly for equal JSON values.

    1 and 1.0 are equal, 1 and true are not.
    """
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(canonical_keys(value)))
    if isinstance(value, dict):
        items = ((name, canonical_key(member)) for name, member in value.items())
        return ("object", frozenset(items))
    return value


def canonical_keys(values: Sequence[JSON]) -> list[Hashable]:
    """Returns the canonical keys of values; a call for each of 100,000 numbers takes 50 ms."""
    keys: list[Hashable] = []
    for value in values:
        if isinstance(value, (bool, dict, list)):
            keys.append(canonical_key(value))
        else:
            keys.append(value)
    return keys


class EnumValues(list[JSON]):
    """The values of an ``enum``, or the value of a ``const``, with look-up by hash."""

    def __init__(self, values: Sequence[JSON]) -> None:
        super().__init__(values)
        self._keys = frozenset(canonical_keys(values))

    def has(self, value: JSON) -> bool:
        """Returns True if `value` is equal to one of the values."""
        return canonical_key(value) in self._keys


Keywords = TypedDict(
    "Keywords",
    {
        "$ref": str,
        "not": "Schema",
        "if": "Schema",
        "else": "Schema",
        "type": list[str],
        "enum": EnumValues,
        "const": EnumValues,
        "multipleOf": Number,
        "minimum": Number,
        "maximum": Number,
        "exclusiveMinimum": Number,
        "exclusiveMaximum": Number,
        "minLength": Number,
        "maxLength": Number,
        "pattern": Pattern,
        "format": str,
        "items": "Schema",
        "prefixItems": list["Schema"],
        "contains": "Schema",
        "minContains": Number,
        "maxContains": Number,
        "minItems": Number,
        "maxItems": Number,
        "uniqueItems": bool,
        "properties": dict[str, "Schema"],
        "patternProperties": dict[Pattern, "Schema"],
        "additionalProperties": "Schema",
        "propertyNames": "Schema",
        "unevaluatedItems": "Schema",
        "unevaluatedProperties": "Schema",
        "required": list[str],
        "minProperties": Number,
        "maxProperties": Number,
        "dependentRequired": dict[str, list[str]],
        "dependentSchemas": dict[str, "Schema"],
        "allOf": list["Schema"],
        "anyOf": list["Schema"],
        "oneOf": list["Schema"],
        "then": "Schema",
        "default": JSON,
        "examples": list[JSON],
    },
    total=False,
)
"""A schema as read, in Draft 2020-12 and without annotations.

``$ref`` is the name of a definition.
"""


Schema: TypeAlias = Keywords | bool
Option: TypeAlias = Sequence[Schema]
"""One option of a choice: further schemas that apply."""
Choice: TypeAlias = Sequence[Option]


class Rule(NamedTuple):
    """A rule for the value of a keyword."""

    message: str
    """Describes a valid value, for errors."""
    accepts: Callable[[object], bool]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_name_list(value: object) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def _is_type(value: object) -> bool:
    if _is_name_list(value):
        return bool(value) and set(value) <= set(TYPES)
    return value in TYPES


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0


def _is_limit(value: object) -> bool:
    return isinstance(value, (int, float))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_map_of_name_lists(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_name_list, value.values()))


def _is_anything(value: object) -> bool:
    return True


def keyword_rules() -> dict[str, Rule]:
    """Returns the rule for the value of each keyword that holds no schema."""
    anything = Rule("", _is_anything)
    count = Rule("must be a whole number, 0 or more", _is_count)
    flag = Rule("must be true or false", _is_flag)
    limit = Rule("must be a number, or true or false", _is_limit)
    number = Rule("must be a number", _is_number)
    text = Rule("must be a string", _is_text)
    values = Rule("must be a list", _is_list)
    rules = {
        "type": Rule(
            f"must be one of {', '.join(TYPES)}, or a list of different ones of them", _is_type
        ),
        "enum": values,
        "const": anything,
        "required": Rule("must be a list of different strings", _is_name_list),
        "minimum": number,
        "maximum": number,
        "exclusiveMinimum": limit,
        "exclusiveMaximum": limit,
        "multipleOf": Rule("must be a number greater than 0", _is_positive),
        "uniqueItems": flag,
        "dependentRequired": Rule(
            "must be an object of lists of different strings", _is_map_of_name_lists
        ),
        "format": text,
        "pattern": text,
        "default": anything,
        "examples": values,
        "$ref": text,
    }
    for part in ("Length", "Items", "Contains", "Properties"):
        rules[f"min{part}"] = count
        rules[f"max{part}"] = count
    rules |= dict.fromkeys(ANNOTATIONS, text)
    rules |= dict.fromkeys(("deprecated", "readOnly", "writeOnly"), flag)
    return rules
