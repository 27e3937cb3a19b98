"""Draws numbers within bounds, multiples of what is asked; and strings of a format, a pattern, a length."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor, inf, isfinite, lcm, nextafter
from random import Random

from app.schema.demands import Bound, Demands
from app.schema.document import Number
from app.schema.errors import Allowance, Contradiction, Unsatisfiable
from app.schema.formats import CHECKER, DRAWS, WORDS, words_for
from app.schema.pattern_pieces import LONGEST
from app.schema.patterns import Pattern

INT64 = (-(2**63), 2**63 - 1)
MOST_BITS = 14_000
"""Bits of the largest integer that is drawn: Python does not write those of more than 4300 digits."""
NUMBER_TRIES, TEXT_TRIES = 30, 12
BEYOND = 8
"""Multiples looked at beyond the first one when the usual range holds none."""
DECIMALS = 2
BRIEF = 6
"""Characters of a brief text, where it may be so short."""


def draw_integer(demands: Demands, rng: Random, usual: tuple[int, int]) -> int:
    """A whole number; where the schema leaves an end open, of the `usual` range or near the other end."""
    return int(_draw_multiple(demands, rng, usual, whole=True))


def draw_number(
    demands: Demands, rng: Random, usual: tuple[float, float], decimals: int | None = DECIMALS
) -> Number:
    """A finite number, of the `usual` range where the schema leaves an end open.

    It has `decimals` where that does; None is an integer.
    """
    if demands.multiples:
        return _draw_multiple(demands, rng, (ceil(usual[0]), floor(usual[1])), whole=False)
    low, high = _window(demands.low, demands.high, usual)
    try:
        drawn = _between(float(low), float(high), rng)
    except OverflowError:  # only a whole number is large enough
        return draw_integer(demands, rng, (0, 0))
    near = (round(drawn, decimals), drawn, nextafter(drawn, -inf), nextafter(drawn, inf))
    for candidate in (*near, low, high):
        if isfinite(candidate) and fits(candidate, demands):
            return candidate
    raise Contradiction


def fits(number: Number, demands: Demands) -> bool:
    """True when `number` is within the bounds of `demands`."""
    low, high = demands.low, demands.high
    if low and (number < low.number or (low.open and number == low.number)):
        return False
    return not (high and (number > high.number or (high.open and number == high.number)))


def _draw_multiple(demands: Demands, rng: Random, usual: tuple[int, int], whole: bool) -> Number:
    """A multiple of all that is asked; 0 is the last try, since dividing floats may not be exact."""
    step = _step(demands.multiples, whole)
    first, last = _multiples_within(demands, step, usual)
    for attempt in range(NUMBER_TRIES):
        count = 0 if attempt == NUMBER_TRIES - 1 and first <= 0 <= last else rng.randint(first, last)
        exact = count * step
        number: Number = int(exact) if exact.denominator == 1 else float(exact)
        if isinstance(number, int) and number.bit_length() > MOST_BITS:
            break
        if fits(number, demands) and all(_is_multiple(number, of) for of in demands.multiples):
            return number
    raise Contradiction


def _is_multiple(number: Number, of: Number) -> bool:
    """As `jsonschema` sees it: the division is one of floats when `of` is one."""
    if isinstance(of, float):
        quotient = number / of
        return isfinite(quotient) and int(quotient) == quotient
    return not number % of


def _step(multiples: list[Number], whole: bool) -> Fraction:
    """The smallest number above 0 that is a multiple of all; of some, when those are too large already."""
    step = Fraction(1) if whole else _exact(multiples[0])
    for other in map(_exact, multiples):
        if step.numerator.bit_length() > MOST_BITS:
            break
        numerator = lcm(step.numerator * other.denominator, other.numerator * step.denominator)
        step = Fraction(numerator, step.denominator * other.denominator)
    return step


def _exact(number: Number) -> Fraction:
    """`number` in decimals, as it was written."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _multiples_within(demands: Demands, step: Fraction, usual: tuple[int, int]) -> tuple[int, int]:
    """First and last count of `step`s within the bounds, near the usual range. Raises Contradiction."""
    least, most = _counts(demands, step)
    if least is not None and most is not None:
        if least > most:
            raise Contradiction
        return least, most
    low, high = _window(demands.low, demands.high, usual)
    first = ceil(_exact(low) / step) if least is None else max(least, ceil(_exact(low) / step))
    last = floor(_exact(high) / step) if most is None else min(most, floor(_exact(high) / step))
    if first <= last:
        return first, last
    if least is not None:
        return least, least + BEYOND
    if most is not None:
        return most - BEYOND, most
    return 0, BEYOND


def _counts(demands: Demands, step: Fraction) -> tuple[int | None, int | None]:
    """The fewest and the most `step`s that the bounds allow."""
    least = most = None
    if demands.low:
        ratio = _exact(demands.low.number) / step
        least = ceil(ratio) + (demands.low.open and ratio.denominator == 1)
    if demands.high:
        ratio = _exact(demands.high.number) / step
        most = floor(ratio) - (demands.high.open and ratio.denominator == 1)
    return least, most


def _window(low: Bound | None, high: Bound | None, usual: tuple[Number, Number]) -> tuple[Number, Number]:
    """The range to draw from: with one end given, what the usual range leaves, else as wide a range there."""
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
    """`number` moved by `width`, within 64 bits when it is itself."""
    if not INT64[0] <= number <= INT64[1] or isinstance(number, float):
        return number + (int(width) if isinstance(number, int) else width)
    return min(max(int(number + width), INT64[0]), INT64[1])


def _between(low: float, high: float, rng: Random) -> float:
    return low + (high - low) * rng.random() if isfinite(high - low) else low * rng.random()


def draw_text(
    demands: Demands, rng: Random, allowance: Allowance, name: str, formats: bool, brief: bool = False
) -> str:
    """A string for a property called `name`; ``format`` is a rule only with `formats`.

    Raises Contradiction when none was found.
    """
    least = demands.counts.get("minLength", 0)
    most = demands.counts.get("maxLength", LONGEST)
    if brief and not demands.patterns and not demands.formats:
        most = min(most, max(least, BRIEF))
    if least > LONGEST:
        raise Contradiction
    for text in _candidates(demands, rng, allowance, name, least, most):
        allowance.spend(1 + len(text) // 64)
        if (
            least <= len(text) <= most
            and all(pattern.found_in(text, allowance) for pattern in demands.patterns)
            and (not formats or all(CHECKER.conforms(text, name) for name in demands.formats))
        ):
            return text
    raise Contradiction


def _candidates(
    demands: Demands, rng: Random, allowance: Allowance, name: str, least: int, most: int
) -> Iterator[str]:
    formats = [each for each in demands.formats if each in DRAWS]
    for attempt in range(TEXT_TRIES if formats or demands.patterns else 0):
        if formats:
            yield DRAWS[formats[attempt % len(formats)]](rng)
        if demands.patterns:
            pattern = demands.patterns[attempt % len(demands.patterns)]
            yield from _written(pattern, rng, allowance, least, most)
    yield from (text for text in demands.examples if isinstance(text, str))
    if not demands.patterns:
        yield _of_length(rng.choice(words_for(name)), least, most, rng)


def _written(pattern: Pattern, rng: Random, allowance: Allowance, least: int, most: int) -> Iterator[str]:
    try:
        yield pattern.write(rng, allowance, least, most)
    except Unsatisfiable:
        allowance.spend()


def _of_length(text: str, least: int, most: int, rng: Random) -> str:
    """`text`, with words added or letters cut off until it has `least` to `most` characters."""
    words = [text]
    length = len(text)
    while length < least:
        words.append(rng.choice(WORDS))
        length += 1 + len(words[-1])
    cut = " ".join(words)[: max(least, min(length, most))]
    return cut[:-1] + "s" if cut.endswith(" ") else cut
