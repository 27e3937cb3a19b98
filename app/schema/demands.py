"""What several schemas together demand of one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.schema.document import Schema
from app.schema.equality import Options
from app.schema.errors import Contradiction
from app.schema.keywords import TYPES
from app.schema.pattern import Pattern

Number = int | float

OF_STRINGS = frozenset(["minLength", "maxLength", "pattern", "format"])
OF_NUMBERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
OF_ARRAYS = frozenset(
    ["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"]
)
OF_OBJECTS = frozenset(
    ["properties", "patternProperties", "additionalProperties", "propertyNames", "required"]
    + ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"]
)
GREATEST = {"minLength", "minItems", "minProperties"}
LEAST = {"maxLength", "maxItems", "maxProperties"}


@dataclass(slots=True)
class Bound:
    """One end of a range; `open` when the number itself is outside."""

    number: Number
    open: bool


@dataclass(slots=True)
class Demands:
    """The merged keywords of `plain`, all of which speak of the same value.

    `types` are those still possible ("number" implies "integer"), `options` the values that an
    ``enum`` or ``const`` leaves, `suggested` the types that keywords without ``type`` hint at.
    `doubtful` tells that a value drawn from all this must still be judged.
    """

    types: set[str] = field(default_factory=lambda: set(TYPES))
    options: list[Any] | None = None
    suggested: set[str] = field(default_factory=set)
    low: Bound | None = None
    high: Bound | None = None
    multiples: list[Number] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    patterns: list[Pattern] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    unique: bool = False
    required: dict[str, None] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    plain: list[Mapping[str, Any]] = field(default_factory=list)
    examples: list[Any] = field(default_factory=list)
    doubtful: bool = False

    def copy(self) -> Demands:
        """The same demands, to be added to without changing these."""
        return Demands(
            set(self.types),
            self.options,
            set(self.suggested),
            self.low,
            self.high,
            list(self.multiples),
            dict(self.counts),
            list(self.patterns),
            list(self.formats),
            self.unique,
            dict(self.required),
            set(self.forbidden),
            list(self.plain),
            list(self.examples),
            self.doubtful,
        )

    def add(self, schema: Mapping[str, Any]) -> None:
        """Take the plain keywords of `schema` in. Raises Contradiction when nothing is left."""
        self.plain.append(schema)
        for keyword, value in schema.items():
            take = TAKE.get(keyword)
            if take:
                take(self, value)
            elif keyword in GREATEST:
                self.counts[keyword] = max(self.counts.get(keyword, 0), int(value))
            elif keyword in LEAST:
                self.counts[keyword] = min(self.counts.get(keyword, int(value)), int(value))
        self._suggest(schema.keys())
        self._narrow()

    def values(self, keyword: str) -> Iterable[Any]:
        """What every schema that has `keyword` says under it."""
        return (schema[keyword] for schema in self.plain if keyword in schema)

    def _suggest(self, keywords: Iterable[str]) -> None:
        for name, own in (
            ("string", OF_STRINGS),
            ("number", OF_NUMBERS),
            ("array", OF_ARRAYS),
            ("object", OF_OBJECTS),
        ):
            if not own.isdisjoint(keywords):
                self.suggested.add(name)

    def _narrow(self) -> None:
        """Drop the types whose own keywords exclude each other."""
        counts, types = self.counts, self.types
        for name, least, most in (
            ("string", "minLength", "maxLength"),
            ("array", "minItems", "maxItems"),
            ("object", "minProperties", "maxProperties"),
        ):
            if name in types and counts.get(least, 0) > counts.get(most, counts.get(least, 0)):
                types.discard(name)
        if self.low and self.high and _empty(self.low, self.high):
            types -= {"integer", "number"}
        if not self.forbidden.isdisjoint(self.required):
            types.discard("object")
        if not types or self.options == []:
            raise Contradiction

    def _take_types(self, names: Sequence[str]) -> None:
        wanted = set(names)
        if "number" in wanted:
            wanted.add("integer")
        self.types &= wanted

    def _take_options(self, options: Options) -> None:
        if self.options is None:
            self.options = options
        else:
            self.options = [option for option in self.options if options.has(option)]
            self.doubtful = True

    def _take_low(self, number: Number, open: bool) -> None:
        low = self.low
        if low is None or number > low.number or (number == low.number and open):
            self.low = Bound(number, open)

    def _take_high(self, number: Number, open: bool) -> None:
        high = self.high
        if high is None or number < high.number or (number == high.number and open):
            self.high = Bound(number, open)

    def _take_required(self, names: Sequence[str]) -> None:
        self.required.update(dict.fromkeys(names))

    def _take_properties(self, properties: Mapping[str, Schema]) -> None:
        self.forbidden.update(name for name, schema in properties.items() if schema is False)

    def _doubt(self, value: Any) -> None:
        self.doubtful = True


def _empty(low: Bound, high: Bound) -> bool:
    return low.number > high.number or (low.number == high.number and (low.open or high.open))


def _unique(demands: Demands, value: bool) -> None:
    demands.unique = demands.unique or value


TAKE: dict[str, Any] = {
    "type": Demands._take_types,
    "enum": Demands._take_options,
    "const": lambda self, value: self._take_options(Options([value])),
    "minimum": lambda self, number: self._take_low(number, False),
    "exclusiveMinimum": lambda self, number: self._take_low(number, True),
    "maximum": lambda self, number: self._take_high(number, False),
    "exclusiveMaximum": lambda self, number: self._take_high(number, True),
    "multipleOf": lambda self, number: self.multiples.append(number),
    "pattern": lambda self, pattern: self.patterns.append(pattern),
    "format": lambda self, name: self.formats.append(name),
    "uniqueItems": _unique,
    "required": Demands._take_required,
    "properties": Demands._take_properties,
    "default": lambda self, value: self.examples.append(value),
    "examples": lambda self, values: self.examples.extend(values),
    "contains": Demands._doubt,
    "propertyNames": Demands._doubt,
    "unevaluatedItems": Demands._doubt,
    "unevaluatedProperties": Demands._doubt,
}
