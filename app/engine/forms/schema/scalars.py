"""Constraints of several schemas on one value, merged; numbers and strings drawn from merged schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isfinite, lcm, nextafter
from random import Random
from typing import Any, NamedTuple

from app.engine.forms.schema.document import JSON, TYPES, Keywords, Number
from app.engine.forms.schema.errors import Unsatisfiable, WorkBudget
from app.engine.forms.schema.formats import CHECKER, DRAWS, WORDS, words_for
from app.engine.forms.schema.patterns import LONGEST

SUGGESTING: Mapping[str, frozenset[str]] = {
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    "array": frozenset(["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"]),
    "object": frozenset(
        ["properties", "patternProperties", "additionalProperties", "propertyNames", "required"]
        + ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas"]
    ),
}
"""Keywords that suggest a type, as they apply to no other."""
DOUBTFUL = frozenset(["oneOf", "not", "if", "contains", "propertyNames"])
"""Keywords that a draw ignores, so that its value must be validated at once."""


class Bound(NamedTuple):
    """One end of a range; `open` excludes the number itself."""

    number: Number
    open: bool


class MergedSchema:
    """The schemas `plain`, without branches, which all apply to one value.

    `types` are the types that all schemas allow; ``number`` includes ``integer``.
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
        """Returns the values of `keyword` in the schemas that have one."""
        if keyword not in self.keywords:
            return []
        return [schema[keyword] for schema in self.plain if keyword in schema]  # type: ignore[literal-required]

    def least(self, keyword: str) -> int:
        """Returns the greatest of lower limits such as ``minItems``; 0 without one."""
        return int(max(self.all(keyword), default=0))

    def most(self, keyword: str, default: int) -> int:
        return int(min(self.all(keyword), default=default))

    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """Returns the ends of a number's range. Raises Unsatisfiable for an empty range."""
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
        return {name for name, own in SUGGESTING.items() if not own.isdisjoint(self.keywords)}

    def examples(self) -> list[JSON]:
        return [*self.all("default"), *(each for examples in self.all("examples") for each in examples)]


INT64 = (-(2**63), 2**63 - 1)
MOST_BITS = 14_000
"""Bits of the largest drawn integer: Python writes at most 4300 digits."""
NUMBER_TRIES, TEXT_TRIES = 30, 12
BEYOND = 8
"""Multiples tried beyond the first one when the usual range holds none."""
DECIMALS = 2
BRIEF = 6
"""Most characters of a brief text, unless the schema needs more."""


def draw_integer(merged: MergedSchema, rng: Random, usual: tuple[int, int]) -> int:
    """Draws a whole number, in or near the `usual` range if the schema allows. Raises Unsatisfiable."""
    return int(_draw_multiple(merged, rng, usual, whole=True))


def draw_number(
    merged: MergedSchema, rng: Random, usual: tuple[float, float], decimals: int | None = DECIMALS
) -> Number:
    """Draws a finite number, in the `usual` range if the schema allows. Raises Unsatisfiable.

    The number has `decimals` where the bounds allow; None draws an integer.
    """
    if "multipleOf" in merged.keywords:
        return _draw_multiple(merged, rng, (ceil(usual[0]), floor(usual[1])), whole=False)
    bounds = merged.bounds()
    low, high = _window(*bounds, usual)
    try:
        drawn = _between(float(low), float(high), rng)
    except OverflowError:  # only a whole number is large enough
        return draw_integer(merged, rng, (0, 0))
    near = (round(drawn, decimals), drawn, nextafter(drawn, -inf), nextafter(drawn, inf))
    for candidate in (*near, low, high):
        if isfinite(candidate) and _fits(candidate, *bounds):
            return candidate
    raise Unsatisfiable("no number was found within the bounds")


def _fits(number: Number, low: Bound | None, high: Bound | None) -> bool:
    if low and (number < low.number or (low.open and number == low.number)):
        return False
    return not (high and (number > high.number or (high.open and number == high.number)))


def _draw_multiple(merged: MergedSchema, rng: Random, usual: tuple[int, int], whole: bool) -> Number:
    """Draws a multiple of all `multipleOf`; 0 is the last try, as float division may be inexact."""
    multiples, bounds = merged.all("multipleOf"), merged.bounds()
    if bounds == (None, None) and not multiples:
        return rng.randint(*usual)
    step = _step(multiples, whole)
    first, last = _multiples_within(step, usual, *bounds)
    for attempt in range(NUMBER_TRIES):
        count = 0 if attempt == NUMBER_TRIES - 1 and first <= 0 <= last else rng.randint(first, last)
        exact = count * step
        number: Number = int(exact) if exact.denominator == 1 else float(exact)
        if isinstance(number, int) and number.bit_length() > MOST_BITS:
            break
        if _fits(number, *bounds) and all(_is_multiple(number, of) for of in multiples):
            return number
    raise Unsatisfiable("no multiple was found within the bounds")


def _is_multiple(number: Number, of: Number) -> bool:
    """Divides as `jsonschema` does: as floats when `of` is a float."""
    if isinstance(of, float):
        quotient = number / of
        return isfinite(quotient) and int(quotient) == quotient
    return not number % of


def _step(multiples: list[Number], whole: bool) -> Fraction:
    """Returns the least common multiple; only of some `multiples`, once the result is too large."""
    step = Fraction(1) if whole else _exact(multiples[0])
    for other in map(_exact, multiples):
        if step.numerator.bit_length() > MOST_BITS:
            break
        numerator = lcm(step.numerator * other.denominator, other.numerator * step.denominator)
        step = Fraction(numerator, step.denominator * other.denominator)
    return step


def _exact(number: Number) -> Fraction:
    """Returns the exact decimal value of `number` as written."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _multiples_within(
    step: Fraction, usual: tuple[int, int], low: Bound | None, high: Bound | None
) -> tuple[int, int]:
    """Returns the first and last multiple of `step`, as counts, within bounds and near the usual range."""
    least = most = None
    if low:
        ratio = _exact(low.number) / step
        least = ceil(ratio) + (low.open and ratio.denominator == 1)
    if high:
        ratio = _exact(high.number) / step
        most = floor(ratio) - (high.open and ratio.denominator == 1)
    if least is not None and most is not None:
        if least > most:
            raise Unsatisfiable("no multiple is within the bounds")
        return least, most
    near = _window(low, high, usual)
    first, last = ceil(_exact(near[0]) / step), floor(_exact(near[1]) / step)
    first, last = first if least is None else max(least, first), last if most is None else min(most, last)
    if first <= last:
        return first, last
    if least is not None:
        return least, least + BEYOND
    return (0, BEYOND) if most is None else (most - BEYOND, most)


def _window(low: Bound | None, high: Bound | None, usual: tuple[Number, Number]) -> tuple[Number, Number]:
    """Returns the range to draw from: the usual one within the bounds, else as wide a range at a bound."""
    width = max(usual[1] - usual[0], 1)
    if low and high:
        return low.number, high.number
    if low:
        near = low.number < usual[1]
        return max(low.number, usual[0]), usual[1] if near else _plus(low.number, width)
    if high:
        near = high.number > usual[0]
        return usual[0] if near else _plus(high.number, -width), min(high.number, usual[1])
    return usual


def _plus(number: Number, width: Number) -> Number:
    """Returns `number` plus `width`; an integer of 64 bits stays within them."""
    if not INT64[0] <= number <= INT64[1] or isinstance(number, float):
        return number + (int(width) if isinstance(number, int) else width)
    return min(max(int(number + width), INT64[0]), INT64[1])


def _between(low: float, high: float, rng: Random) -> float:
    return low + (high - low) * rng.random() if isfinite(high - low) else low * rng.random()


def draw_text(
    merged: MergedSchema, rng: Random, budget: WorkBudget, name: str, formats: bool, brief: bool = False
) -> str:
    """Draws a string for a property called `name`; ``format`` is a rule only with `formats`.

    Raises Unsatisfiable when no string was found.
    """
    least, most = merged.least("minLength"), merged.most("maxLength", LONGEST)
    patterns, asked = merged.all("pattern"), merged.all("format")
    if brief and not patterns and not asked:
        most = min(most, max(least, BRIEF))
    if least > LONGEST:
        raise Unsatisfiable("a text would be too long")
    for text in _candidates(merged, rng, budget, name, least, most):
        budget.spend(1 + len(text) // 64)
        if (
            least <= len(text) <= most
            and all(pattern.found_in(text, budget) for pattern in patterns)
            and (not formats or all(CHECKER.conforms(text, each) for each in asked))
        ):
            return text
    raise Unsatisfiable("no text was found that satisfies the schema")


def _candidates(
    merged: MergedSchema, rng: Random, budget: WorkBudget, name: str, least: int, most: int
) -> Iterator[str]:
    patterns, formats = merged.all("pattern"), [each for each in merged.all("format") if each in DRAWS]
    for attempt in range(TEXT_TRIES if formats or patterns else 0):
        if formats:
            yield DRAWS[formats[attempt % len(formats)]](rng)
        if patterns:
            try:
                yield patterns[attempt % len(patterns)].write(rng, budget, least, most)
            except Unsatisfiable:
                budget.spend()
    yield from (text for text in merged.examples() if isinstance(text, str))
    if not patterns:
        yield _of_length(rng.choice(words_for(name)), least, most, rng)


def _of_length(text: str, least: int, most: int, rng: Random) -> str:
    """Returns `text` with added words or cut letters, to have `least` to `most` characters."""
    words = [text]
    length = len(text)
    while length < least:
        words.append(rng.choice(WORDS))
        length += 1 + len(words[-1])
    cut = " ".join(words)[: max(least, min(length, most))]
    return cut[:-1] + "s" if cut.endswith(" ") else cut
