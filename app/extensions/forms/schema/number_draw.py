"""Draws random numbers that satisfy a merged schema."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isfinite, lcm, nextafter
from random import Random
from typing import NamedTuple

from app.extensions.forms.schema.bounds import UnsatisfiableError
from app.extensions.forms.schema.keywords import Number
from app.extensions.forms.schema.merged_schema import MergedSchema

MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
MAX_INTEGER_BITS = 14_000
"""Maximum bits of a drawn integer: Python writes at most 4300 digits."""
MAX_ATTEMPTS = 30
EXTRA_MULTIPLES = 8
"""Multiples tried beyond the first one when the usual range holds none."""
DECIMALS = 2


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included."""

    low: Number
    high: Number


class Bounds(NamedTuple):
    """The numbers that a schema allows; None is no limit."""

    low: Number | None
    high: Number | None


def draw_number(merged: MergedSchema, rng: Random, usual: Range, whole: bool) -> Number:
    """Draws a number in or near the `usual` range.

    The number is `whole`, or has `DECIMALS` decimals.

    Raises:
        UnsatisfiableError: No number was found.
    """
    if whole and merged.has_only_types:
        return rng.randint(int(usual.low), int(usual.high))
    multiples = merged.get("multipleOf", ())
    bounds = Bounds(
        max([*merged.get("minimum", ()), *merged.get("exclusiveMinimum", ())], default=None),
        min([*merged.get("maximum", ()), *merged.get("exclusiveMaximum", ())], default=None),
    )
    if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high:
        raise UnsatisfiableError("the numeric range is empty")
    if whole and bounds == (None, None) and not multiples:
        return rng.randint(int(usual.low), int(usual.high))
    window = _window(bounds, usual)
    candidates: Iterator[Number]
    if whole and not multiples and _is_range_of_integers(window):
        candidates = _integers(int(window.low), int(window.high), rng)
    elif whole or multiples:
        candidates = _multiples(_common_step(multiples, whole), bounds, window, rng)
    else:
        try:
            candidates = iter(_fractions(window, rng))
        except OverflowError:  # only a whole number is large enough
            candidates = _multiples(Fraction(1), bounds, window, rng)
    for number in candidates:
        if merged.accepts_number(number):
            return number
    raise UnsatisfiableError("could not find a number within the bounds")


def _is_range_of_integers(window: Range) -> bool:
    low, high = window
    return isinstance(low, int) and isinstance(high, int) and low <= high


def _integers(low: int, high: int, rng: Random) -> Iterator[int]:
    """Yields the integers that `_multiples` yields, without the arithmetic of fractions."""
    for _ in range(MAX_ATTEMPTS):
        number = rng.randint(low, high)
        if number.bit_length() <= MAX_INTEGER_BITS:
            yield number
    yield 0


def _fractions(window: Range, rng: Random) -> list[Number]:
    """Draws a number in the window, and returns it with its neighbors and the window's ends."""
    low = float(window.low)
    high = float(window.high)
    share = rng.random()
    if isfinite(high - low):
        number = low + (high - low) * share
    else:
        number = low * share
    return [
        round(number, DECIMALS),
        number,
        nextafter(number, -inf),
        nextafter(number, inf),
        window.low,
        window.high,
    ]


def _multiples(step: Fraction, bounds: Bounds, window: Range, rng: Random) -> Iterator[Number]:
    """Yields random multiples of `step` in the window, or else near the bounds.

    Yields 0 at last, as float division may be inexact.
    """
    start = ceil(_exact(window.low) / step)
    end = floor(_exact(window.high) / step)
    if start > end and (bounds.low is None or bounds.high is None):
        if bounds.low is not None:
            start = ceil(_exact(bounds.low) / step)
        elif bounds.high is not None:
            start = floor(_exact(bounds.high) / step) - EXTRA_MULTIPLES
        else:
            start = 0
        end = start + EXTRA_MULTIPLES
    if start <= end:
        for _ in range(MAX_ATTEMPTS):
            exact = rng.randint(start, end) * step
            if exact.denominator > 1:
                yield float(exact)
            elif exact.numerator.bit_length() <= MAX_INTEGER_BITS:
                yield int(exact)
    yield 0


def _common_step(multiples: Sequence[Number], whole: bool) -> Fraction:
    """Returns the least common multiple, or one of the first `multiples` if it is too large."""
    if whole:
        step = Fraction(1)
    else:
        step = _exact(multiples[0])
    for factor in map(_exact, multiples):
        if step.numerator.bit_length() > MAX_INTEGER_BITS:
            break
        numerator = lcm(step.numerator * factor.denominator, factor.numerator * step.denominator)
        step = Fraction(numerator, step.denominator * factor.denominator)
    return step


def _exact(number: Number) -> Fraction:
    if isinstance(number, int):
        return Fraction(number)
    return Fraction(repr(number))


def _window(bounds: Bounds, usual: Range) -> Range:
    """Returns the range to draw from.

    This is the usual range within the bounds, or else as wide a range at a bound.
    """
    low, high = bounds
    if low is not None and high is not None:
        return Range(low, high)
    width = max(usual.high - usual.low, 1)
    if low is not None:
        if low >= usual.high:
            return Range(max(low, usual.low), _add(low, width))
        return Range(max(low, usual.low), usual.high)
    if high is not None:
        if high <= usual.low:
            return Range(_add(high, -width), min(high, usual.high))
        return Range(usual.low, min(high, usual.high))
    return usual


def _add(number: Number, width: Number) -> Number:
    """Returns `number` plus `width`; an integer of 64 bits stays within them."""
    if isinstance(number, float):
        return number + width
    if not MIN_INT64 <= number <= MAX_INT64:
        return number + int(width)
    return min(max(int(number + width), MIN_INT64), MAX_INT64)
