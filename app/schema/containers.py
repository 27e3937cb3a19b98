"""Draws arrays and objects: how many items, which properties, and what is in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from app.schema.document import JSON, Keywords, Schema, identity
from app.schema.errors import Unsatisfiable
from app.schema.formats import WORDS
from app.schema.merged import MergedSchema

if TYPE_CHECKING:
    from app.schema.draw import Draw

MOST_ITEMS = 4096
"""Items of the longest array that is drawn."""
SPREAD = 15
"""Items at most beyond the fewest, where only the schema sets a limit."""
ITEM_TRIES = 40
"""Draws of one item that has to differ from others, or not to be one that is contained."""
MOST_PROPERTIES = 1024
"""Properties of the largest object that is drawn."""
MOST_INVENTED = 3
"""Entries of a map: an object whose schema has one for its values, and names no property."""
NAME_TRIES = 8
SCHEMAS_A_STEP = 8
"""Schemas of one value that take one step of work to ask for a part of it."""


def draw_array(draw: Draw, merged: MergedSchema, depth: int, name: str) -> list[JSON]:
    """Draws an array called `name`, shorter where no more items can be had. Raises Unsatisfiable."""
    return _ArrayDraw(draw, merged, depth, name).draw()


class _ArrayDraw:
    def __init__(self, draw: Draw, merged: MergedSchema, depth: int, name: str) -> None:
        self._merged = merged
        self._draw = draw
        self._depth = depth
        self._item_name = name.removesuffix("s")
        self._fewest = merged.least("minItems")
        self._is_unique = any(merged.all("uniqueItems"))
        self._containing = [schema for schema in merged.plain if "contains" in schema]
        self._missing = [int(schema.get("minContains", 1)) for schema in self._containing]
        self._seen: set[Hashable] = set()

    def draw(self) -> list[JSON]:
        items: list[JSON] = []
        for index in range(self._length()):
            try:
                items.append(self._item(self._schemas(index)))
            except Unsatisfiable:
                if index < self._fewest:
                    raise
                break
            for number, schema in enumerate(self._containing):
                if self._missing[number] > 0:
                    self._missing[number] -= self._draw.accepts(schema["contains"], items[-1])
        if any(count > 0 for count in self._missing):
            raise Unsatisfiable("an array does not contain what it has to")
        return items

    def _length(self) -> int:
        """Draws how many items there are, of the usual range where the schema leaves it (simulator.md 7.4).

        As few as it allows where values are kept small. Raises Unsatisfiable when that is still too many.
        """
        merged, usual = self._merged, self._draw.ranges.array_lengths
        fewest = max(self._fewest, sum(self._missing))
        if fewest > MOST_ITEMS:
            raise Unsatisfiable("an array would be too long")
        if self._draw.is_small(self._depth):
            return fewest
        low, most = fewest, merged.most("maxItems", MOST_ITEMS)
        if "minItems" not in merged.keywords:
            low = max(fewest, usual[0], *map(len, merged.all("prefixItems")))
        low = min(low, most, MOST_ITEMS)
        high = min(most, low + SPREAD) if "maxItems" in merged.keywords else max(usual[1], low)
        return self._draw.rng.randint(low, min(high, MOST_ITEMS))

    def _schemas(self, index: int) -> list[Schema]:
        """Returns what all schemas ask of the item at `index`."""
        self._draw.budget.spend(len(self._merged.plain) // SCHEMAS_A_STEP)
        asked: list[Schema] = []
        for schema in self._merged.plain:
            prefix = schema.get("prefixItems", ())
            if index < len(prefix):
                asked.append(prefix[index])
            elif "items" in schema:
                asked.append(schema["items"])
        return asked

    def _item(self, schemas: list[Schema]) -> JSON:
        """Draws an item that is all of what is still missing if possible, else one of it, else any."""
        missing = zip(self._containing, self._missing, strict=True)
        wanted = [schema["contains"] for schema, count in missing if count > 0]
        wishes = [wanted, *([each] for each in wanted)] if len(wanted) > 1 else [wanted]
        for wish in [*wishes, []] if wanted else wishes:
            try:
                return self._new_item([*schemas, *wish], may_be_contained=bool(wanted))
            except Unsatisfiable:
                continue
        raise Unsatisfiable("no item was found that satisfies the schema")

    def _new_item(self, schemas: list[Schema], may_be_contained: bool) -> JSON:
        """Draws an item that is unlike the others where it has to be, and not contained once too often."""
        limited = [] if may_be_contained else [each for each in self._containing if "maxContains" in each]
        for _ in range(ITEM_TRIES if self._is_unique or limited else 1):
            item = self._draw.value(schemas, self._depth + 1, self._item_name)
            if any(self._draw.accepts(each["contains"], item) for each in limited):
                continue
            if not self._is_unique:
                return item
            if (key := identity(item)) not in self._seen:
                self._seen.add(key)
                return item
        raise Unsatisfiable("no new item was found")


def draw_object(draw: Draw, merged: MergedSchema, depth: int) -> dict[str, JSON]:
    """Draws an object, its declared properties first. Raises Unsatisfiable."""
    return _ObjectDraw(draw, merged, depth).draw()


class _ObjectDraw:
    def __init__(self, draw: Draw, merged: MergedSchema, depth: int) -> None:
        self._merged = merged
        self._draw = draw
        self._depth = depth
        self._fewest = merged.least("minProperties")
        self._most = min(merged.most("maxProperties", MOST_PROPERTIES), MOST_PROPERTIES)
        self._name_rules = merged.all("propertyNames")
        self._value: dict[str, JSON] = {}

    def draw(self) -> dict[str, JSON]:
        if self._fewest > MOST_PROPERTIES:
            raise Unsatisfiable("an object would be too large")
        self._add([name for names in self._merged.all("required") for name in names])
        declared = dict.fromkeys(name for names in self._merged.all("properties") for name in names)
        left = [name for name in declared if name not in self._value]
        for name in left:
            if self._draw.rng.random() < self._chance() and not self._draw.is_small(self._depth + 1):
                self._try(name)
        if not self._value:
            self._begin(left)
        self._fill(left)
        if len(self._value) < self._fewest:
            raise Unsatisfiable("no more properties were found for an object")
        return {name: self._value[name] for name in (*declared, *self._value) if name in self._value}

    def _chance(self) -> float:
        ranges = self._draw.ranges
        return ranges.optional_field if self._depth else ranges.optional_property

    def _begin(self, left: Sequence[str]) -> None:
        """Draws one of `left`: an object that may have something in it is not left empty by chance."""
        if self._chance() and not self._draw.is_smallest(self._depth + 1):
            for name in self._draw.rng.sample(left, len(left)):
                self._try(name)
                if self._value:
                    return

    def _fill(self, left: Sequence[str]) -> None:
        """Adds properties until there are enough: declared ones first, then invented ones."""
        wanted = max(self._fewest, self._map_entries())
        for names in (left, self._invented(wanted)):
            for name in names if len(self._value) < wanted else ():
                self._try(name)
                if len(self._value) >= wanted:
                    return

    def _try(self, name: str) -> None:
        try:
            self._add([name])
        except Unsatisfiable:
            return

    def _add(self, names: list[str]) -> None:
        """Draws `names` and what they require. Raises Unsatisfiable, leaving the value as it was."""
        before = dict(self._value)
        try:
            for name in names:  # the list grows meanwhile
                if name in self._value:
                    continue
                if len(self._value) >= self._most or not self._is_allowed(name):
                    raise Unsatisfiable("a property cannot be added")
                self._value[name] = self._draw.value(self._schemas(name), self._depth + 1, name)
                for needed in self._merged.all("dependentRequired"):
                    names += needed.get(name, ())
        except Unsatisfiable:
            self._value = before
            raise

    def _is_allowed(self, name: str) -> bool:
        return all(self._draw.accepts(schema, name) for schema in self._name_rules)

    def _schemas(self, name: str) -> list[Schema]:
        """Returns what all schemas ask of the property `name`."""
        self._draw.budget.spend(len(self._merged.plain) // SCHEMAS_A_STEP)
        return [asked for schema in self._merged.plain for asked in self._asked(schema, name)]

    def _asked(self, schema: Keywords, name: str) -> list[Schema]:
        own: list[Schema] = []
        if name in schema.get("properties", ()):
            own.append(schema["properties"][name])
        for pattern, each in schema.get("patternProperties", {}).items():
            if pattern.found_in(name, self._draw.budget):
                own.append(each)
        if not own and "additionalProperties" in schema:
            own.append(schema["additionalProperties"])
        return own

    def _map_entries(self) -> int:
        """Draws how many entries to invent for an object that declares none but has a schema for values."""
        merged = self._merged
        if any(merged.all("properties")) or self._draw.is_small(self._depth):
            return 0
        values = merged.all("additionalProperties")
        if not values and "patternProperties" not in merged.keywords or any(each is False for each in values):
            return 0
        most = min(MOST_INVENTED, self._most)
        return self._draw.rng.randint(min(1, most), most)

    def _invented(self, wanted: int) -> Iterator[str]:
        """Yields names: by the patterns of the schema, by its rules for names, or plain words."""
        rules: list[list[Schema]] = [
            [*self._name_rules, {"pattern": pattern}]
            for patterns in self._merged.all("patternProperties")
            for pattern in patterns
        ]
        if self._name_rules:
            rules.append(self._name_rules)
        for number in range(wanted + NAME_TRIES):
            for schemas in rules:
                try:
                    yield str(self._draw.value([{"type": ["string"]}, *schemas], self._depth + 1))
                except Unsatisfiable:
                    continue
            if not self._name_rules:
                word = WORDS[number % len(WORDS)]
                yield word if number < len(WORDS) else f"{word}{number // len(WORDS) + 1}"
