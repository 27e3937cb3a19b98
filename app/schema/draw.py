"""Draws a value: built from what its schema demands, and judged where that is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import TypeVar

from app.schema.choices import Choices, Heights
from app.schema.containers import ArrayDraw, ObjectDraw
from app.schema.demands import Demands
from app.schema.document import JSON, Document, Schema
from app.schema.errors import Allowance, Contradiction
from app.schema.judge import Judge
from app.schema.ranges import Ranges, Size
from app.schema.scalars import DECIMALS, draw_integer, draw_number, draw_text

N = TypeVar("N", int, float)

DEEP = 5
"""Levels of nesting after which values are kept small: no optional fields, shallow branches."""
DEEPEST = 64
"""Levels after which nothing is drawn any more."""
PLENTY = 150
"""Values drawn after which the rest is kept small."""
TRIES = 8
"""Draws for one place of the value whose result depends on chance."""
ENUM = frozenset(("enum", "default", "examples"))
"""Keywords beside which any option will do."""
DIGITS = 9
"""Brief numbers lie so far from the least usual one at most."""
MOST_SHUFFLED = 1000
"""Options of an ``enum`` that are tried in any order; more are tried in theirs, from any one on."""


class Draw:
    """One draw from `document`; `formats` makes ``format`` a rule rather than a remark."""

    def __init__(
        self,
        document: Document,
        heights: Heights,
        judge: Judge,
        ranges: Ranges,
        rng: Random,
        allowance: Allowance,
        formats: bool,
        size: Size,
    ) -> None:
        self.rng = rng
        self.ranges = ranges
        self.allowance = allowance
        self._formats = formats
        self._least = size == Size.LEAST
        self._frugal, self._brief = size < Size.USUAL, size <= Size.BRIEF
        self._heights = heights
        self._judge = judge
        self._choices = Choices(document, heights, rng, allowance)
        self._drawn = 0

    def value(self, schemas: Sequence[Schema], depth: int = 0, name: str = "") -> JSON:
        """A value that all of `schemas` accept, `depth` levels down. Raises Contradiction."""
        self._drawn += 1
        self.allowance.spend()
        if depth > DEEPEST or self._heights.greatest(schemas) == inf:
            raise Contradiction
        small = self.small(depth)
        for attempt in range(TRIES):
            demands, chosen = self._choices.decide(schemas, careful=attempt > 0, frugal=small)
            try:
                value = self._of_type(demands, schemas, depth, name, attempt)
            except Contradiction:
                if not chosen and not demands.doubtful:
                    raise
                continue
            if not demands.doubtful or self._accepted(schemas, value):
                return value
        for example in demands.examples:
            if self._accepted(schemas, example):
                return example
        raise Contradiction

    def small(self, depth: int) -> bool:
        """True when values at `depth` are to be kept small."""
        return self._frugal or self._is_much(depth)

    def smallest(self, depth: int) -> bool:
        """True when values at `depth` are to be the smallest, empty ones too."""
        return self._least or self._is_much(depth)

    def _is_much(self, depth: int) -> bool:
        return depth >= DEEP or self._drawn > PLENTY

    def accepts(self, schema: Schema, value: JSON) -> bool:
        """True when `value` satisfies `schema`."""
        return self._judge.accepts(schema, value, self.allowance, self._formats)

    def _accepted(self, schemas: Sequence[Schema], value: JSON) -> bool:
        return all(self.accepts(schema, value) for schema in schemas)

    def _of_type(
        self, demands: Demands, schemas: Sequence[Schema], depth: int, name: str, attempt: int
    ) -> JSON:
        if demands.options is not None:
            return self._option(demands, schemas)
        for kind in self._kinds(demands, depth, hinted=attempt < TRIES // 2):
            try:
                return self._one(kind, demands, depth, name)
            except Contradiction:
                continue
            except ArithmeticError:  # bounds beyond what a float can hold
                continue
        raise Contradiction

    def _option(self, demands: Demands, schemas: Sequence[Schema]) -> JSON:
        options = demands.options or []
        ordered: Sequence[JSON] = sorted(options, key=_width) if self._brief else ()
        if not ordered and len(demands.plain) == 1 and demands.plain[0].keys() <= ENUM:
            return self.rng.choice(options)
        for option in ordered or self._in_any_order(options):
            if self._accepted(schemas, option):
                return option
        raise Contradiction

    def _in_any_order(self, options: list[JSON]) -> Sequence[JSON]:
        if len(options) <= MOST_SHUFFLED:
            return self.rng.sample(options, len(options))
        start = self.rng.randrange(len(options))
        return options[start:] + options[:start]

    def _kinds(self, demands: Demands, depth: int, hinted: bool) -> list[str]:
        """The types to try, in order: with `hinted`, those that the keywords suggest come first."""
        types = demands.types - {"integer"} if "number" in demands.types else demands.types
        likely = demands.suggested & types if hinted else set()
        if not likely and len(types) > 3:
            likely = types & {"string"}
        first, rest = sorted(likely), sorted(types - likely)
        self.rng.shuffle(first)
        self.rng.shuffle(rest)
        if self.small(depth):
            rest.sort(key=lambda kind: kind in ("array", "object"))
        return first + rest

    def _one(self, kind: str, demands: Demands, depth: int, name: str) -> JSON:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.rng.random() < 0.5
            case "integer":
                return draw_integer(demands, self.rng, self._usual(*self.ranges.integers))
            case "number":
                usual = self._usual(*self.ranges.numbers)
                return draw_number(demands, self.rng, usual, None if self._brief else DECIMALS)
            case "string":
                return draw_text(demands, self.rng, self.allowance, name, self._formats, self._brief)
            case "array":
                return ArrayDraw(demands, self, depth, name).draw()
        return ObjectDraw(demands, self, depth).draw()

    def _usual(self, low: N, high: N) -> tuple[N, N]:
        """A usual range of numbers; the start of it where they are to be brief."""
        return low, min(high, low + DIGITS) if self._brief else high


def _width(option: JSON) -> int:
    """Characters of an option, about."""
    return len(str(option))
