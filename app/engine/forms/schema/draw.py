"""Draws a value for a random branch of each choice, and again where the value is not valid."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from math import inf
from random import Random
from typing import TypeVar

from app.engine.forms.schema.document import JSON, Document, Keywords, Schema, identity
from app.engine.forms.schema.errors import Unsatisfiable, WorkBudget
from app.engine.forms.schema.formats import WORDS
from app.engine.forms.schema.ranges import Ranges, Size
from app.engine.forms.schema.scalars import DECIMALS, MergedSchema, draw_integer, draw_number, draw_text
from app.engine.forms.schema.validation import accepts

MOST_ITEMS = 4096
"""Items of the longest drawn array."""
SPREAD = 15
"""Most items beyond the fewest, where only the schema sets a limit."""
ITEM_TRIES = 40
"""Draws of one item that must differ from others, or must not match `contains`."""
MOST_PROPERTIES = 1024
"""Properties of the largest drawn object."""
MOST_INVENTED = 3
"""Most entries of a map: an object without declared properties, with a schema for its values."""
NAME_TRIES = 8
SCHEMAS_A_STEP = 8
"""Schemas of one value per step of work, to find their schemas of a part."""


def draw_array(draw: Draw, merged: MergedSchema, depth: int, name: str) -> list[JSON]:
    """Draws an array called `name`, shorter where no further item is found. Raises Unsatisfiable."""
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
        """Draws the number of items, in the usual range if the schema allows (simulator.md 7.4).

        Small values get the fewest items. Raises Unsatisfiable when the fewest are too many.
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
        """Draws an item that matches all `contains` still missing if possible, else one, else none."""
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
        """Draws an item that keeps to `uniqueItems` and `maxContains`."""
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
        """Draws one of `left`, so that an object is not empty by chance."""
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
        """Draws `names` and their required properties. On Unsatisfiable the value stays unchanged."""
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
        """Draws the number of entries of a map; 0 for other objects."""
        merged = self._merged
        if any(merged.all("properties")) or self._draw.is_small(self._depth):
            return 0
        values = merged.all("additionalProperties")
        if not values and "patternProperties" not in merged.keywords or any(each is False for each in values):
            return 0
        most = min(MOST_INVENTED, self._most)
        return self._draw.rng.randint(min(1, most), most)

    def _invented(self, wanted: int) -> Iterator[str]:
        """Yields names: from `patternProperties`, from `propertyNames`, or plain words."""
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


N = TypeVar("N", int, float)

DEEP = 5
"""Levels of nesting after which values are kept small: no optional fields, shallow branches."""
DEEPEST = 64
"""Most levels of nesting."""
PLENTY = 150
"""Drawn values after which further ones are kept small."""
MOST_TRIES, FEWEST_TRIES = 16, 3
"""Draws for one place of the value, at the top and at least; each level has half as many."""
COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"))
"""Keywords that apply further schemas to the same value."""
ENUM = frozenset(("enum", "default", "examples"))
"""Keywords beside which every option is valid."""
DIGITS = 9
"""Greatest distance of a brief number from the start of the usual range."""
MOST_SHUFFLED = 1000
"""Most options of an ``enum`` tried in random order; more are tried in theirs, from a random start."""
MEMBERS_A_STEP = 16
"""Members of a list or map that are read per step of work."""


class Draw:
    """One draw from `document`; `formats` makes ``format`` a rule rather than an annotation."""

    def __init__(
        self,
        document: Document,
        ranges: Ranges,
        rng: Random,
        budget: WorkBudget,
        formats: bool,
        size: Size,
    ) -> None:
        self.rng = rng
        self.ranges = ranges
        self.budget = budget
        self._document = document
        self._formats = formats
        self._size = size
        self._brief = size <= Size.BRIEF
        self._drawn = 0

    def value(self, schemas: Sequence[Schema], depth: int = 0, name: str = "") -> JSON:
        """Returns a value that all of `schemas` accept, `depth` levels down. Raises Unsatisfiable."""
        self._drawn += 1
        self.budget.spend()
        if depth > DEEPEST or self._document.min_depth(*schemas) == inf:
            raise Unsatisfiable("a value would have no end")
        examples: list[JSON] = []
        tries = max(MOST_TRIES >> depth, FEWEST_TRIES)
        for attempt, merged in enumerate(islice(self._merges(schemas, depth), tries)):
            examples += merged.examples() if attempt == 0 else ()
            try:
                value = self._of_types(merged, schemas, depth, name, attempt)
            except Unsatisfiable:
                continue
            if not merged.is_doubtful or self._all_accept(schemas, value):
                return value
        for example in examples:
            if self._all_accept(schemas, example):
                return example
        raise Unsatisfiable("no value was found that satisfies the schema")

    def is_small(self, depth: int) -> bool:
        return self._size < Size.USUAL or self._is_much(depth)

    def is_smallest(self, depth: int) -> bool:
        """Returns True when values at `depth` are to be the smallest, empty ones too."""
        return self._size == Size.LEAST or self._is_much(depth)

    def accepts(self, schema: Schema, value: JSON) -> bool:
        """Returns True when `value` satisfies `schema`."""
        return accepts(self._document, schema, value, self.budget, self._formats)

    def _is_much(self, depth: int) -> bool:
        return depth >= DEEP or self._drawn > PLENTY

    def _all_accept(self, schemas: Sequence[Schema], value: JSON) -> bool:
        return all(self.accepts(schema, value) for schema in schemas)

    def _merges(self, schemas: Sequence[Schema], depth: int) -> Iterator[MergedSchema]:
        """Yields `schemas` merged, for each choice of branches, repeatedly; only once without choices."""
        plain: list[Keywords] = []
        choices: list[list[list[Schema]]] = []
        while self._flatten(schemas, plain, choices):
            found = False
            for merged in self._branches(plain, choices, depth):
                yield merged
                found = True
            if not found or not (choices or merged.is_doubtful):
                return
            plain, choices = [], []

    def _branches(
        self, plain: list[Keywords], choices: list[list[list[Schema]]], depth: int
    ) -> Iterator[MergedSchema]:
        merged = MergedSchema(plain)
        if not choices:
            if merged.types:
                yield merged
            return
        *rest, options = choices
        for option in self._in_order(options, depth) if merged.types else ():
            more, open_choices = list(plain), list(rest)
            if self._flatten(option, more, open_choices):
                yield from self._branches(more, open_choices, depth)

    def _in_order(self, options: list[list[Schema]], depth: int) -> list[list[Schema]]:
        """Returns the options that can end, shuffled; shallow ones first where values are kept small."""
        self.budget.spend(1 + len(options) // MEMBERS_A_STEP)
        depths = [(self._document.min_depth(*option), option) for option in options]
        ordered = [(levels, option) for levels, option in depths if levels != inf]
        self.rng.shuffle(ordered)
        if self.is_small(depth):
            ordered.sort(key=lambda each: each[0])
        return [option for _, option in ordered]

    def _flatten(
        self, schemas: Sequence[Schema], plain: list[Keywords], choices: list[list[list[Schema]]]
    ) -> bool:
        """Adds `schemas` and their references to `plain`, and their open branches to `choices`.

        Returns False when no value can satisfy them.
        """
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if schema is False:
                return False
            if schema is True or (plain and any(schema is each for each in plain)):
                self.budget.spend()
                continue
            self.budget.spend(1 + _breadth(schema))
            plain.append(schema)
            if COMBINING.isdisjoint(schema):
                continue
            waiting += schema.get("allOf", ())
            if "$ref" in schema:
                waiting.append(self._document.definitions[schema["$ref"]])
            choices += _choices(schema)
        return True

    def _of_types(
        self, merged: MergedSchema, schemas: Sequence[Schema], depth: int, name: str, attempt: int
    ) -> JSON:
        if merged.options is not None:
            return self._option(merged, merged.options, schemas)
        for kind in self._kinds(merged, depth, hinted=attempt % 2 == 0):
            try:
                return self._of_type(kind, merged, depth, name)
            except (Unsatisfiable, ArithmeticError):  # the latter for bounds beyond the range of floats
                continue
        raise Unsatisfiable("no type has a value that satisfies the schema")

    def _option(self, merged: MergedSchema, options: list[JSON], schemas: Sequence[Schema]) -> JSON:
        ordered: Sequence[JSON]
        if self._brief:
            ordered = sorted(options, key=lambda option: len(str(option)))
        elif options and merged.keywords <= ENUM:
            return self.rng.choice(options)
        elif len(options) <= MOST_SHUFFLED:
            ordered = self.rng.sample(options, len(options))
        else:
            start = self.rng.randrange(len(options))
            ordered = options[start:] + options[:start]
        for option in ordered:
            if self._all_accept(schemas, option):
                return option
        raise Unsatisfiable("no option of the enum satisfies the schema")

    def _kinds(self, merged: MergedSchema, depth: int, hinted: bool) -> list[str]:
        """Returns the types to try, in order; with `hinted`, types that the keywords suggest come first."""
        types = merged.types - {"integer"} if "number" in merged.types else merged.types
        likely = merged.suggested() & types if hinted and len(types) > 1 else set()
        if not likely and hinted and len(types) > 3:
            likely = types & {"string"}
        first, rest = sorted(likely), sorted(types - likely)
        self.rng.shuffle(first)
        self.rng.shuffle(rest)
        if self.is_small(depth):
            rest.sort(key=lambda kind: kind in ("array", "object"))
        return first + rest

    def _of_type(self, kind: str, merged: MergedSchema, depth: int, name: str) -> JSON:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.rng.random() < 0.5
            case "integer":
                return draw_integer(merged, self.rng, self._usual(*self.ranges.integers))
            case "number":
                usual = self._usual(*self.ranges.numbers)
                return draw_number(merged, self.rng, usual, None if self._brief else DECIMALS)
            case "string":
                return draw_text(merged, self.rng, self.budget, name, self._formats, self._brief)
            case "array":
                return draw_array(self, merged, depth, name)
        return draw_object(self, merged, depth)

    def _usual(self, low: N, high: N) -> tuple[N, N]:
        return low, min(high, low + DIGITS) if self._brief else high


def _choices(schema: Keywords) -> Iterator[list[list[Schema]]]:
    """Yields the choices of `schema`: lists of options, each a list of further schemas that apply."""
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if branches is not None:
            yield [[branch] for branch in branches]
    if "if" in schema:
        yield [[schema["if"], schema.get("then", True)], [schema.get("else", True)]]
    for name, dependent in schema.get("dependentSchemas", {}).items():
        yield [[{"required": [name]}, dependent], [{"properties": {name: False}}]]


def _breadth(schema: Keywords) -> int:
    """Returns the steps for reading long lists and maps; an enum is free, as only one option is read."""
    members = sum([len(each) for each in schema.values() if isinstance(each, (list, dict))])
    return (members - len(schema.get("enum", ()))) // MEMBERS_A_STEP
