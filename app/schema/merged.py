"""What several schemas together ask of one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.schema.document import JSON, Keywords, Number
from app.schema.errors import Unsatisfiable
from app.schema.keywords import TYPES

SUGGESTING: Mapping[str, frozenset[str]] = {
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "array": frozenset(["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"]),
    "object": frozenset(
        ["properties", "patternProperties", "additionalProperties", "propertyNames", "required"]
        + ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas"]
    ),
}
"""Keywords that apply to one type only, and so suggest it."""
DOUBTFUL = frozenset(["oneOf", "not", "if", "contains", "propertyNames"])
"""Keywords that a draw does not build for: its value has to be validated at once."""


class Bound(NamedTuple):
    """One end of a range; `open` when the number itself is outside."""

    number: Number
    open: bool


class MergedSchema:
    """The schemas `plain`, all of which apply to the same value, and without their branches.

    `types` are those that all of them allow; ``number`` stands for ``integer``, too.
    """

    def __init__(self, plain: Sequence[Keywords]) -> None:
        self.plain = plain
        self.keywords = plain[0].keys() if len(plain) == 1 else frozenset().union(*plain)
        self.types = set(TYPES)
        for names in self.all("type"):
            self.types &= {*names, "integer"} if "number" in names else set(names)
        options = [*self.all("enum"), *self.all("const")]
        self.options: list[JSON] | None = min(options, key=len, default=None)
        self.is_doubtful = len(options) > 1 or not DOUBTFUL.isdisjoint(self.keywords)

    def all(self, keyword: str) -> list[Any]:
        """Returns what each schema holds under `keyword`, where it is there."""
        if keyword not in self.keywords:
            return []
        return [schema[keyword] for schema in self.plain if keyword in schema]  # type: ignore[literal-required]

    def least(self, keyword: str) -> int:
        """Returns the greatest of lower limits such as ``minItems``; 0 without one."""
        return int(max(self.all(keyword), default=0))

    def most(self, keyword: str, default: int) -> int:
        """Returns the lowest of upper limits such as ``maxItems``."""
        return int(min(self.all(keyword), default=default))

    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """Returns the ends of the range of a number. Raises Unsatisfiable for an empty one."""
        lows = [Bound(number, False) for number in self.all("minimum")]
        lows += [Bound(number, True) for number in self.all("exclusiveMinimum")]
        highs = [Bound(number, False) for number in self.all("maximum")]
        highs += [Bound(number, True) for number in self.all("exclusiveMaximum")]
        low = max(lows, default=None)
        high = min(highs, key=lambda bound: (bound.number, not bound.open), default=None)
        if low and high and (low.number, low.open or high.open) > (high.number, False):
            raise Unsatisfiable("the range of numbers is empty")
        return low, high

    def suggested(self) -> set[str]:
        """Returns the types that keywords without ``type`` suggest."""
        return {name for name, own in SUGGESTING.items() if not own.isdisjoint(self.keywords)}

    def examples(self) -> list[JSON]:
        """Returns the values of ``default`` and ``examples``."""
        return [*self.all("default"), *(each for examples in self.all("examples") for each in examples)]
