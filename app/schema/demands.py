"""What several schemas together demand of one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.schema.document import JSON, Keywords, Number, Options, Schema
from app.schema.errors import Contradiction
from app.schema.keywords import TYPES
from app.schema.patterns import Pattern

SUGGESTING: Mapping[str, frozenset[str]] = {
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "array": frozenset(["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"]),
    "object": frozenset(
        ["properties", "patternProperties", "additionalProperties", "propertyNames", "required"]
        + ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas"]
    ),
}
"""The keywords that say something of one type only."""
COUNTED = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)
GREATEST = frozenset(least for _, least, _ in COUNTED)
LEAST = frozenset(most for _, _, most in COUNTED)


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
    options: list[JSON] | None = None
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
    plain: list[Keywords] = field(default_factory=list)
    examples: list[JSON] = field(default_factory=list)
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

    def add(self, schema: Keywords) -> None:
        """Take the plain keywords of `schema` in. Raises Contradiction when nothing is left."""
        self.plain.append(schema)
        for keyword, value in schema.items():
            take = TAKE.get(keyword)
            if take:
                take(self, value)
        self._suggest(schema.keys())
        self._narrow()

    def _suggest(self, keywords: Iterable[str]) -> None:
        for name, own in SUGGESTING.items():
            if not own.isdisjoint(keywords):
                self.suggested.add(name)

    def _narrow(self) -> None:
        """Drop the types whose own keywords exclude each other."""
        counts, types = self.counts, self.types
        for name, least, most in COUNTED:
            if name in types and counts.get(least, 0) > counts.get(most, counts.get(least, 0)):
                types.discard(name)
        if self.low and self.high and _empty(self.low, self.high):
            types -= {"integer", "number"}
        if not self.forbidden.isdisjoint(self.required):
            types.discard("object")
        if not types or self.options == []:
            raise Contradiction

    def take_types(self, names: Sequence[str]) -> None:
        wanted = set(names)
        if "number" in wanted:
            wanted.add("integer")
        self.types &= wanted

    def take_options(self, options: Options) -> None:
        if self.options is None:
            self.options = options
        else:
            self.options = options.among(self.options)
            self.doubtful = True

    def take_low(self, number: Number, open: bool) -> None:
        low = self.low
        if low is None or number > low.number or (number == low.number and open):
            self.low = Bound(number, open)

    def take_high(self, number: Number, open: bool) -> None:
        high = self.high
        if high is None or number < high.number or (number == high.number and open):
            self.high = Bound(number, open)

    def take_unique(self, unique: bool) -> None:
        self.unique = self.unique or unique

    def take_required(self, names: Sequence[str]) -> None:
        self.required.update(dict.fromkeys(names))

    def take_properties(self, properties: Mapping[str, Schema]) -> None:
        self.forbidden.update(name for name, schema in properties.items() if schema is False)

    def doubt(self, value: object) -> None:
        self.doubtful = True


def _empty(low: Bound, high: Bound) -> bool:
    return low.number > high.number or (low.number == high.number and (low.open or high.open))


def _greatest(keyword: str) -> Callable[[Demands, Number], None]:
    def take(demands: Demands, count: Number) -> None:
        demands.counts[keyword] = max(demands.counts.get(keyword, 0), int(count))

    return take


def _least(keyword: str) -> Callable[[Demands, Number], None]:
    def take(demands: Demands, count: Number) -> None:
        demands.counts[keyword] = min(demands.counts.get(keyword, int(count)), int(count))

    return take


TAKE: Mapping[str, Callable[[Demands, Any], None]] = {
    "type": Demands.take_types,
    "enum": Demands.take_options,
    "const": Demands.take_options,
    "minimum": lambda self, number: self.take_low(number, False),
    "exclusiveMinimum": lambda self, number: self.take_low(number, True),
    "maximum": lambda self, number: self.take_high(number, False),
    "exclusiveMaximum": lambda self, number: self.take_high(number, True),
    "multipleOf": lambda self, number: self.multiples.append(number),
    "pattern": lambda self, pattern: self.patterns.append(pattern),
    "format": lambda self, name: self.formats.append(name),
    "uniqueItems": Demands.take_unique,
    "required": Demands.take_required,
    "properties": Demands.take_properties,
    "default": lambda self, value: self.examples.append(value),
    "examples": lambda self, values: self.examples.extend(values),
    "contains": Demands.doubt,
    "propertyNames": Demands.doubt,
    **{keyword: _greatest(keyword) for keyword in GREATEST},
    **{keyword: _least(keyword) for keyword in LEAST},
}
"""What a keyword's value adds to the demands; those without an entry are looked at where they matter."""
