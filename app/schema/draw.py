"""Draws a value: for one branch of each choice, by chance, and again where it does not validate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from random import Random
from typing import TypeVar

from app.schema.containers import draw_array, draw_object
from app.schema.document import JSON, Document, Keywords, Schema
from app.schema.errors import Unsatisfiable, WorkBudget
from app.schema.merged import MergedSchema
from app.schema.ranges import Ranges, Size
from app.schema.scalars import DECIMALS, draw_integer, draw_number, draw_text
from app.schema.validation import accepts

N = TypeVar("N", int, float)

DEEP = 5
"""Levels of nesting after which values are kept small: no optional fields, shallow branches."""
DEEPEST = 64
"""Levels after which nothing is drawn any more."""
PLENTY = 150
"""Values drawn after which the rest is kept small."""
MOST_TRIES, FEWEST_TRIES = 16, 3
"""Draws for one place of the value, at the top and deep down; each level has half as many."""
COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"))
"""Keywords that apply further schemas to the same value."""
ENUM = frozenset(("enum", "default", "examples"))
"""Keywords beside which any option will do."""
DIGITS = 9
"""Brief numbers lie so far from the least usual one at most."""
MOST_SHUFFLED = 1000
"""Options of an ``enum`` that are tried in any order; more are tried in theirs, from any one on."""
MEMBERS_A_STEP = 16
"""Members of a list or map that take one step of work to look at."""


class Draw:
    """One draw from `document`; `formats` makes ``format`` a rule rather than a remark."""

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
        """Returns True when values at `depth` are to be kept small."""
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
        """Yields `schemas` merged, with each choice of branches, and again; once where chance has no part."""
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
        """Returns the options that can end, in any order; shallow ones first where values are kept small."""
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
        """Adds `schemas`, with what they refer to, to `plain`, and what they leave open to `choices`.

        Returns False where nothing can satisfy them.
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
            except (Unsatisfiable, ArithmeticError):  # or bounds beyond what a float can hold
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
        """Returns the types to try, in order: with `hinted`, those that the keywords suggest come first."""
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
        """Returns a usual range of numbers; its start where they are to be brief."""
        return low, min(high, low + DIGITS) if self._brief else high


def _choices(schema: Keywords) -> Iterator[list[list[Schema]]]:
    """Yields what `schema` leaves open: lists of options, each of them schemas that apply, too."""
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if branches is not None:
            yield [[branch] for branch in branches]
    if "if" in schema:
        yield [[schema["if"], schema.get("then", True)], [schema.get("else", True)]]
    for name, dependent in schema.get("dependentSchemas", {}).items():
        yield [[{"required": [name]}, dependent], [{"properties": {name: False}}]]


def _breadth(schema: Keywords) -> int:
    """Returns the steps that looking at long lists and maps costs; of an enum one option is picked."""
    members = sum([len(each) for each in schema.values() if isinstance(each, (list, dict))])
    return (members - len(schema.get("enum", ()))) // MEMBERS_A_STEP
