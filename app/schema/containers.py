"""Draws arrays and objects: how many items, which properties, and what is in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from random import Random
from typing import Protocol

from app.schema.demands import Demands
from app.schema.document import JSON, Keywords, Schema, identity
from app.schema.errors import Allowance, Contradiction
from app.schema.formats import WORDS
from app.schema.ranges import Ranges

MOST_ITEMS = 4096
"""Items of the longest array that is drawn."""
SPREAD = 15
"""Items at most beyond the fewest, where only the schema sets a limit."""
UNIQUE_TRIES = 40
MOST_PROPERTIES = 1024
"""Properties of the largest object that is drawn."""
MOST_INVENTED = 3
"""Entries of a map: an object whose schema tells of its values, and of no names."""
NAME_TRIES = 8
SCHEMAS_A_STEP = 8
"""Schemas of one value that take one step of work to ask for a part of it."""


class Drawing(Protocol):
    """The draw that an array or an object is part of."""

    rng: Random
    ranges: Ranges
    allowance: Allowance

    def value(self, schemas: Sequence[Schema], depth: int, name: str = "") -> JSON:
        """A value that all of `schemas` accept, `depth` levels down. Raises Contradiction."""

    def accepts(self, schema: Schema, value: JSON) -> bool:
        """True when `value` satisfies `schema`."""

    def small(self, depth: int) -> bool:
        """True when values at `depth` are to be kept small."""

    def smallest(self, depth: int) -> bool:
        """True when values at `depth` are to be the smallest, empty ones too."""


class ArrayDraw:
    """An array `depth` levels down, called `name`."""

    def __init__(self, demands: Demands, drawing: Drawing, depth: int, name: str) -> None:
        self._demands = demands
        self._drawing = drawing
        self._depth = depth
        self._item_name = name.removesuffix("s")
        self._fewest = demands.counts.get("minItems", 0)
        self._containing = [schema for schema in demands.plain if "contains" in schema]
        self._seen: set[Hashable] = set()

    def draw(self) -> list[JSON]:
        """The array: shorter than drawn when no more can be had and the schema allows it.

        Raises Contradiction.
        """
        length = self._length()
        missing = [int(schema.get("minContains", 1)) for schema in self._containing]
        items: list[JSON] = []
        for index in range(length):
            due = [number for number, count in enumerate(missing) if count > 0]
            try:
                item = self._item(self._schemas(index), self._wanted(due))
            except Contradiction:
                if index >= self._fewest:
                    break
                raise
            items.append(item)
            for number in due:
                missing[number] -= self._drawing.accepts(self._containing[number]["contains"], item)
        if any(count > 0 for count in missing):
            raise Contradiction
        return items

    def _length(self) -> int:
        """How many items to draw, of the usual range where the schema does not say (simulator.md 7.4).

        As few as it allows where values are kept small. Raises Contradiction when that is still too many.
        """
        counts, usual = self._demands.counts, self._drawing.ranges.array_lengths
        needed = sum(int(schema.get("minContains", 1)) for schema in self._containing)
        fewest = max(self._fewest, min(needed, MOST_ITEMS + 1))
        if fewest > MOST_ITEMS:
            raise Contradiction
        if self._drawing.small(self._depth):
            return fewest
        low = fewest
        if "minItems" not in counts:
            prefixes = (len(schema.get("prefixItems", ())) for schema in self._demands.plain)
            low = max(fewest, usual[0], *prefixes)
        low = min(low, counts.get("maxItems", low), MOST_ITEMS)
        high = min(counts["maxItems"], low + SPREAD) if "maxItems" in counts else max(usual[1], low)
        return self._drawing.rng.randint(low, min(high, MOST_ITEMS))

    def _schemas(self, index: int) -> list[Schema]:
        """What all schemas say of the item at `index`."""
        self._drawing.allowance.spend(len(self._demands.plain) // SCHEMAS_A_STEP)
        said: list[Schema] = []
        for schema in self._demands.plain:
            prefix = schema.get("prefixItems", ())
            if index < len(prefix):
                said.append(prefix[index])
            elif "items" in schema:
                said.append(schema["items"])
        return said

    def _wanted(self, due: Sequence[int]) -> list[Schema]:
        """What the next item should be, besides: one of what still has to be contained, else none of it."""
        if due:
            return [self._containing[number]["contains"] for number in due]
        return [{"not": schema["contains"]} for schema in self._containing if "maxContains" in schema]

    def _item(self, schemas: list[Schema], wanted: list[Schema]) -> JSON:
        """An item that is all of `wanted` if possible, one of them if not; unlike the others if need be."""
        attempts = [[*schemas, *wanted]] if wanted else []
        if len(wanted) > 1:
            attempts += [[*schemas, each] for each in wanted]
        for attempt in (*attempts, schemas):
            try:
                return self._new(attempt) if self._demands.unique else self._any(attempt)
            except Contradiction:
                continue
        raise Contradiction

    def _any(self, schemas: list[Schema]) -> JSON:
        return self._drawing.value(schemas, self._depth + 1, self._item_name)

    def _new(self, schemas: list[Schema]) -> JSON:
        for _ in range(UNIQUE_TRIES):
            drawn = self._any(schemas)
            key = identity(drawn, self._drawing.allowance.slices)
            if key not in self._seen:
                self._seen.add(key)
                return drawn
        raise Contradiction


class ObjectDraw:
    """An object `depth` levels down: declared properties, and invented ones."""

    def __init__(self, demands: Demands, drawing: Drawing, depth: int) -> None:
        self._demands = demands
        self._drawing = drawing
        self._depth = depth
        self._fewest = demands.counts.get("minProperties", 0)
        self._most = min(demands.counts.get("maxProperties", MOST_PROPERTIES), MOST_PROPERTIES)
        self._name_rules = [schema["propertyNames"] for schema in demands.plain if "propertyNames" in schema]
        self._value: dict[str, JSON] = {}

    def draw(self) -> dict[str, JSON]:
        """The object, its declared properties first. Raises Contradiction."""
        if self._fewest > MOST_PROPERTIES:
            raise Contradiction
        self._add(list(self._demands.required))
        declared = dict.fromkeys(name for each in self._demands.plain for name in each.get("properties", ()))
        left = [name for name in declared if name not in self._value]
        for name in left:
            if self._is_wanted():
                self._try(name)
        if not self._value:
            self._begin(left)
        self._fill(left)
        if len(self._value) < self._fewest:
            raise Contradiction
        return {name: self._value[name] for name in (*declared, *self._value) if name in self._value}

    def _is_wanted(self) -> bool:
        """Decides whether a property that may be left out is drawn."""
        return self._drawing.rng.random() < self._chance() and not self._drawing.small(self._depth + 1)

    def _chance(self) -> float:
        ranges = self._drawing.ranges
        return ranges.optional_field if self._depth else ranges.optional_property

    def _begin(self, left: Sequence[str]) -> None:
        """Draw one of `left`: an object that may have something in it is not left empty by chance."""
        if self._chance() and not self._drawing.smallest(self._depth + 1):
            for name in self._drawing.rng.sample(left, len(left)):
                self._try(name)
                if self._value:
                    return

    def _fill(self, left: Sequence[str]) -> None:
        """Add properties until there are enough: declared ones first, then invented ones."""
        wanted = max(self._fewest, self._map_entries())
        for name in left:
            if len(self._value) >= wanted:
                return
            self._try(name)
        for name in self._invented(wanted):
            if len(self._value) >= wanted:
                return
            self._try(name)

    def _try(self, name: str) -> None:
        if name not in self._value:
            try:
                self._add([name])
            except Contradiction:
                return

    def _add(self, names: list[str]) -> None:
        """Draw `names` and what they require. Raises Contradiction, leaving the value as it was."""
        before = dict(self._value)
        try:
            for name in names:
                if name in self._value:
                    continue
                if len(self._value) >= self._most or not self._is_allowed(name):
                    raise Contradiction
                self._value[name] = self._drawing.value(self._schemas(name), self._depth + 1, name)
                for schema in self._demands.plain:
                    names += schema.get("dependentRequired", {}).get(name, ())
        except Contradiction:
            self._value = before
            raise

    def _is_allowed(self, name: str) -> bool:
        return all(self._drawing.accepts(schema, name) for schema in self._name_rules)

    def _schemas(self, name: str) -> list[Schema]:
        """What all schemas say of the property `name`."""
        self._drawing.allowance.spend(len(self._demands.plain) // SCHEMAS_A_STEP)
        return [said for schema in self._demands.plain for said in self._said(schema, name)]

    def _said(self, schema: Keywords, name: str) -> list[Schema]:
        own: list[Schema] = []
        if name in schema.get("properties", ()):
            own.append(schema["properties"][name])
        for pattern, each in schema.get("patternProperties", {}).items():
            if pattern.found_in(name, self._drawing.allowance):
                own.append(each)
        if not own and "additionalProperties" in schema:
            own.append(schema["additionalProperties"])
        return own

    def _map_entries(self) -> int:
        """How many entries to invent for an object that declares none but tells of their values."""
        plain, most = self._demands.plain, min(MOST_INVENTED, self._most)
        if any(schema.get("properties") for schema in plain) or self._drawing.small(self._depth):
            return 0
        if any(schema.get("additionalProperties") is False for schema in plain):
            return 0
        if not any("patternProperties" in schema or "additionalProperties" in schema for schema in plain):
            return 0
        return self._drawing.rng.randint(min(1, most), most)

    def _invented(self, wanted: int) -> Iterator[str]:
        """Names of our own: by the patterns of the schema, by its rules for names, or plain words."""
        rules: list[list[Schema]] = [
            [*self._name_rules, {"pattern": pattern}]
            for schema in self._demands.plain
            for pattern in schema.get("patternProperties", ())
        ]
        if self._name_rules:
            rules.append(self._name_rules)
        for number in range(wanted + NAME_TRIES if wanted else 0):
            for schemas in rules:
                try:
                    yield str(self._drawing.value([{"type": ["string"]}, *schemas], self._depth + 1))
                except Contradiction:
                    continue
            if not self._name_rules:
                word = WORDS[number % len(WORDS)]
                yield word if number < len(WORDS) else f"{word}{number // len(WORDS) + 1}"
