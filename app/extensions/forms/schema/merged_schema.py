"""The constraints of several schemas on one value, merged."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from app.core.base.clock.pause import paced
from app.extensions.forms.schema.bounds import TYPES
from app.extensions.forms.schema.keywords import JSON, Keywords, Number

SUGGESTING_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "number": frozenset(
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
    ),
    "array": frozenset(
        [
            "items",
            "prefixItems",
            "contains",
            "minItems",
            "maxItems",
            "uniqueItems",
            "unevaluatedItems",
        ]
    ),
    "object": frozenset(
        [
            "properties",
            "patternProperties",
            "additionalProperties",
            "propertyNames",
            "required",
            "minProperties",
            "maxProperties",
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
        ]
    ),
}
"""Keywords that suggest a type, as they apply to no other type."""
TYPE_KEYWORDS = frozenset(["type"])
ALL_TYPES = frozenset(TYPES)
MAX_PROPERTIES = 1024
"""Maximum number of properties of a drawn object."""
UNDRAWN_KEYWORDS = frozenset(
    [
        "oneOf",
        "not",
        "if",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
"""Keywords that a draw ignores, so that its value must be validated at once."""


class ObjectLimits(NamedTuple):
    """Limits of an object that satisfies merged schemas."""

    required: Sequence[str]
    declared: Sequence[str]
    """Names of its properties."""
    min_properties: int
    max_properties: int
    """At most `MAX_PROPERTIES`."""
    is_map: bool
    """A schema allows properties that are not declared."""


class MergedSchema(dict[str, list[Any]]):
    """The values of each keyword in `schemas`, which apply to one value and have no branches.

    `types` are the possible types; ``number`` includes ``integer``. `options` are the values of
    the shortest ``enum`` or ``const``. `has_only_types` means that no other keyword constrains the
    value, `is_doubtful` that a drawn value may be invalid.
    """

    def __init__(self, schemas: Sequence[Keywords]) -> None:
        self.schemas = schemas
        for schema in schemas:
            for keyword, value in schema.items():
                self.setdefault(keyword, []).append(value)
        self.types = ALL_TYPES
        for names in self.get("type", ()):
            accepted = set(names)
            if "number" in names:
                accepted.add("integer")
            self.types &= accepted
        enums = [*self.get("enum", ()), *self.get("const", ())]
        self.has_only_types = self.keys() <= TYPE_KEYWORDS
        self.options: list[JSON] | None = min(enums, key=len, default=None)
        self.sole_kind: Sequence[str] = ()
        """The only kind of value to draw; empty where the draw chooses among several types."""
        if self.options is not None:
            self.sole_kind = ("enum",)
        elif len(self.types) == 1:
            self.sole_kind = tuple(self.types)
        self.is_doubtful = len(enums) > 1 or not UNDRAWN_KEYWORDS.isdisjoint(self)

    @cached_property
    def object_limits(self) -> ObjectLimits:
        """The limits of an object; those of a schema that is drawn from again are read once."""
        extra_schemas = self.get("additionalProperties", ())
        has_schema = bool(extra_schemas) or "patternProperties" in self
        return ObjectLimits(
            required=[*chain.from_iterable(self.get("required", ()))],
            declared=[*dict.fromkeys(paced(chain.from_iterable(self.get("properties", ()))))],
            min_properties=self.minimum("minProperties"),
            max_properties=min(self.maximum("maxProperties", MAX_PROPERTIES), MAX_PROPERTIES),
            is_map=has_schema and False not in extra_schemas,
        )

    def minimum(self, keyword: str) -> int:
        """Returns the minimum count that `keyword` sets, such as ``minItems``; 0 without it."""
        return int(max(self.get(keyword, ()), default=0))

    def maximum(self, keyword: str, default: int) -> int:
        """Returns the maximum count that `keyword` sets, such as ``maxItems``."""
        return int(min(self.get(keyword, ()), default=default))

    def accepts_number(self, number: Number) -> bool:
        """Returns True for a finite number within bounds that the multiples divide.

        The division is the one of `jsonschema`.
        """
        if isinstance(number, float) and not isfinite(number):
            return False
        for divisor in self.get("multipleOf", ()):
            if isinstance(divisor, float):
                quotient = number / divisor
                if not isfinite(quotient) or int(quotient) != quotient:
                    return False
            elif number % divisor:
                return False
        return (
            number >= max(self.get("minimum", ()), default=number)
            and number <= min(self.get("maximum", ()), default=number)
            and all(number > limit for limit in self.get("exclusiveMinimum", ()))
            and all(number < limit for limit in self.get("exclusiveMaximum", ()))
        )

    def examples(self) -> list[JSON]:
        """Returns the defaults and the examples."""
        return [*self.get("default", ()), *chain.from_iterable(self.get("examples", ()))]
