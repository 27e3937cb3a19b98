"""Constraints of several schemas on one value, merged; numbers and strings drawn from merged
schemas.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import chain
from math import ceil, floor, inf, isfinite, lcm, nextafter
from random import Random
from typing import Any
from uuid import UUID

from jsonschema import FormatChecker

from app.engine.forms.schema.bounds import TYPES, Unsatisfiable, WorkBudget
from app.engine.forms.schema.document import JSON, Keywords, Number
from app.engine.forms.schema.patterns import LONGEST

WORDS = (
    "amber",
    "birch",
    "cobalt",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "iris",
    "juniper",
)
"""Texts for property names without a hint."""

NAMED: Mapping[str, tuple[str, ...]] = {
    "city": ("Lisbon", "Nairobi", "Osaka", "Quito", "Tromso"),
    "country": ("Portugal", "Kenya", "Japan", "Ecuador", "Norway"),
    "location": ("Lisbon, Portugal", "Osaka, Japan", "Quito, Ecuador"),
    "address": ("12 Mill Lane", "7 Harbor Street", "48 Station Road"),
    "timezone": ("Europe/Lisbon", "Asia/Tokyo", "Africa/Nairobi"),
    "language": ("en", "pt", "ja", "sw"),
    "currency": ("EUR", "JPY", "KES", "NOK"),
    "email": ("ada@example.com", "kofi@example.org", "mei@example.net"),
    "phone": ("+1 555 0100", "+1 555 0142", "+1 555 0199"),
    "url": ("https://example.com/docs", "https://example.org/list"),
    "datetime": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
    "timestamp": ("2026-03-14T09:30:00Z", "2026-10-02T18:00:00Z"),
    "date": ("2026-03-14", "2026-07-21", "2026-10-02"),
    "time": ("09:30", "14:05", "18:00"),
    "unit": ("celsius", "meters", "kilograms"),
    "color": ("teal", "amber", "violet", "olive"),
    "username": ("ada", "kofi", "mei", "tomas"),
    "filename": ("notes.txt", "report.pdf", "plan.md"),
    "file": ("notes.txt", "report.pdf", "plan.md"),
    "path": ("/srv/notes.txt", "docs/plan.md", "/tmp/report.csv"),
    "name": ("Ada", "Kofi", "Mei", "Tomas"),
    "title": ("Weekly plan", "Garden notes", "First draft"),
    "query": ("rain tomorrow", "train to Porto", "bread without yeast"),
    "question": ("When does it open?", "How far is it?"),
    "description": ("A short note", "Two lines about the trip"),
    "message": ("See you at noon", "The parcel has arrived"),
    "content": ("A short note", "Three things to do today"),
    "text": ("A short note", "The parcel has arrived"),
    "code": ("print('hello')", "total = 1 + 2"),
    "id": ("a1b2c3", "k7m4q9", "x5t8w2"),
}
"""Texts by the end of a property's name; the first match wins."""


FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SPAN_S = 3 * 365 * 24 * 3600
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
HOSTS = ("example.com", "example.org", "example.net", "api.example.com", "shop.example.org")


def _moment(rng: Random) -> str:
    return (FIRST + timedelta(seconds=rng.randrange(SPAN_S))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _path(rng: Random) -> str:
    return "".join(f"/{rng.choice(WORDS)}" for _ in range(rng.randint(1, 2)))


ASCII_DRAWS: dict[str, Callable[[Random], str]] = {
    "date-time": _moment,
    "date": lambda rng: _moment(rng)[:10],
    "time": lambda rng: _moment(rng)[11:],
    "duration": lambda rng: f"P{rng.randint(1, 9)}DT{rng.randint(1, 23)}H",
    "email": lambda rng: f"{rng.choice(WORDS)}.{rng.choice(WORDS)}@{rng.choice(HOSTS[:3])}",
    "hostname": lambda rng: rng.choice(HOSTS),
    "ipv4": lambda rng: f"192.0.2.{rng.randint(1, 254)}",
    "ipv6": lambda rng: f"2001:db8::{rng.randint(1, 0xFFFF):x}",
    "uri": lambda rng: f"https://{rng.choice(HOSTS)}{_path(rng)}",
    "uri-reference": _path,
    "uri-template": lambda rng: f"https://{rng.choice(HOSTS)}/{{{rng.choice(WORDS)}}}",
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
    "json-pointer": _path,
    "relative-json-pointer": lambda rng: f"{rng.randint(0, 3)}{_path(rng)}",
    "regex": lambda rng: f"^{rng.choice(WORDS)}[0-9]+$",
}
DRAWS: Mapping[str, Callable[[Random], str]] = ASCII_DRAWS | {
    "idn-email": ASCII_DRAWS["email"],
    "idn-hostname": ASCII_DRAWS["hostname"],
    "iri": ASCII_DRAWS["uri"],
    "iri-reference": ASCII_DRAWS["uri-reference"],
}


def _checker() -> FormatChecker:
    """Returns the checks of `jsonschema` that need no further package, and one of moments (RFC
    3339).
    """
    checker = FormatChecker(["date", "email", "idn-email", "ipv4", "ipv6", "uuid"])

    @checker.checks("date-time", raises=ValueError)
    def is_moment(text: object) -> bool:
        return not isinstance(text, str) or (
            MOMENT.fullmatch(text) is not None and datetime.fromisoformat(text.upper()) is not None
        )

    return checker


CHECKER = _checker()
"""Checks of formats that alternatives of a schema may differ in; others are only drawn."""


SUGGESTING: Mapping[str, frozenset[str]] = {
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "number": frozenset(
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
    ),
    "array": frozenset(["items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"]),
    "object": frozenset(
        ["properties", "patternProperties", "additionalProperties", "propertyNames", "required"]
        + ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas"]
    ),
}
"""Keywords that suggest a type, as they apply to no other."""
DOUBTFUL = frozenset(["oneOf", "not", "if", "contains", "propertyNames"])
"""Keywords that a draw ignores, so that its value must be validated at once."""


class MergedSchema(dict[str, list[Any]]):
    """Keyword -> its values in the schemas `plain`, without branches, which apply to one value.

    ``number`` includes ``integer`` in `types`.
    """

    def __init__(self, plain: Sequence[Keywords]) -> None:
        self.plain = plain
        for schema in plain:
            for keyword, value in schema.items():
                self.setdefault(keyword, []).append(value)
        self.types = set(TYPES)
        for names in self.get("type", ()):
            self.types &= {*names, "integer"} if "number" in names else set(names)
        options = [*self.get("enum", ()), *self.get("const", ())]
        self.options: list[JSON] | None = min(options, key=len, default=None)
        self.is_doubtful = len(options) > 1 or not DOUBTFUL.isdisjoint(self)

    def least(self, keyword: str) -> int:
        return int(max(self.get(keyword, ()), default=0))

    def most(self, keyword: str, default: int) -> int:
        return int(min(self.get(keyword, ()), default=default))

    def accepts_number(self, number: Number) -> bool:
        """Returns True for a finite number within bounds and multiples, divided as by `jsonschema`."""
        if isinstance(number, float) and not isfinite(number):
            return False
        for divisor in self.get("multipleOf", ()):
            if isinstance(divisor, float):
                quotient = number / divisor
                if not isfinite(quotient) or int(quotient) != quotient:
                    return False
            elif number % divisor:
                return False
        return (
            number >= max(self.get("minimum", ()), default=number)
            and number <= min(self.get("maximum", ()), default=number)
            and all(number > each for each in self.get("exclusiveMinimum", ()))
            and all(number < each for each in self.get("exclusiveMaximum", ()))
        )

    def examples(self) -> list[JSON]:
        return [*self.get("default", ()), *chain.from_iterable(self.get("examples", ()))]


INT64 = (-(2**63), 2**63 - 1)
MOST_BITS = 14_000
"""Bits of the largest drawn integer: Python writes at most 4300 digits."""
NUMBER_TRIES, TEXT_TRIES = 30, 12
BEYOND = 8
"""Multiples tried beyond the first one when the usual range holds none."""
DECIMALS = 2
BRIEF = 6
"""Most characters of a brief text, unless the schema needs more."""


def draw_number(
    merged: MergedSchema, rng: Random, usual: tuple[Number, Number], whole: bool
) -> Number:
    """Draws a number, `whole` or of `DECIMALS`, in or near the `usual` range.

    Raises Unsatisfiable.
    """
    multiples = merged.get("multipleOf", ())
    least = max([*merged.get("minimum", ()), *merged.get("exclusiveMinimum", ())], default=None)
    most = min([*merged.get("maximum", ()), *merged.get("exclusiveMaximum", ())], default=None)
    if least is not None and most is not None and least > most:
        raise Unsatisfiable("the range of numbers is empty")
    if whole and least is None and most is None and not multiples:
        return rng.randint(int(usual[0]), int(usual[1]))
    low, high = _window(least, most, usual)
    if not whole and not multiples:
        try:
            first, last, share = float(low), float(high), rng.random()
            drawn = first + (last - first) * share if isfinite(last - first) else first * share
            near = (
                round(drawn, DECIMALS),
                drawn,
                nextafter(drawn, -inf),
                nextafter(drawn, inf),
                low,
                high,
            )
            candidates = iter(near)
        except OverflowError:  # only a whole number is large enough
            candidates = _multiples(Fraction(1), least, most, low, high, rng)
    else:
        candidates = _multiples(_step(multiples, whole), least, most, low, high, rng)
    for number in candidates:
        if merged.accepts_number(number):
            return number
    raise Unsatisfiable("no number was found within the bounds")


def _multiples(
    step: Fraction,
    low: Number | None,
    high: Number | None,
    first: Number,
    last: Number,
    rng: Random,
) -> Iterator[Number]:
    """Yields random multiples of `step` within the bounds, then 0, as float division may be
    inexact.
    """
    least = None if low is None else ceil(_exact(low) / step)
    most = None if high is None else floor(_exact(high) / step)
    begin, end = ceil(_exact(first) / step), floor(_exact(last) / step)
    if begin > end and (least is None or most is None):
        begin = least if least is not None else 0 if most is None else most - BEYOND
        end = begin + BEYOND
    for _ in range(NUMBER_TRIES if begin <= end else 0):
        exact = rng.randint(begin, end) * step
        if exact.denominator > 1:
            yield float(exact)
        elif exact.numerator.bit_length() <= MOST_BITS:
            yield int(exact)
    yield 0


def _step(multiples: Sequence[Number], whole: bool) -> Fraction:
    """Returns the least common multiple; only of some `multiples`, once the result is too large."""
    step = Fraction(1) if whole else _exact(multiples[0])
    for other in map(_exact, multiples):
        if step.numerator.bit_length() > MOST_BITS:
            break
        numerator = lcm(step.numerator * other.denominator, other.numerator * step.denominator)
        step = Fraction(numerator, step.denominator * other.denominator)
    return step


def _exact(number: Number) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _window(
    low: Number | None, high: Number | None, usual: tuple[Number, Number]
) -> tuple[Number, Number]:
    """Returns the range to draw from:

    the usual one within the bounds, else as wide a range at a bound.
    """
    if low is not None and high is not None:
        return low, high
    width = max(usual[1] - usual[0], 1)
    if low is not None:
        return max(low, usual[0]), usual[1] if low < usual[1] else _plus(low, width)
    if high is not None:
        return usual[0] if high > usual[0] else _plus(high, -width), min(high, usual[1])
    return usual


def _plus(number: Number, width: Number) -> Number:
    """Returns `number` plus `width`; an integer of 64 bits stays within them."""
    if not INT64[0] <= number <= INT64[1] or isinstance(number, float):
        return number + (int(width) if isinstance(number, int) else width)
    return min(max(int(number + width), INT64[0]), INT64[1])


def draw_text(
    merged: MergedSchema,
    rng: Random,
    budget: WorkBudget,
    name: str,
    formats: bool,
    brief: bool = False,
) -> str:
    """Draws a string for a property `name`; ``format`` is a rule with `formats`.

    Raises Unsatisfiable.
    """
    least, most = merged.least("minLength"), merged.most("maxLength", LONGEST)
    patterns, asked = merged.get("pattern", ()), merged.get("format", ())
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
    patterns, formats = (
        merged.get("pattern", ()),
        [it for it in merged.get("format", ()) if it in DRAWS],
    )
    for attempt in range(TEXT_TRIES if formats or patterns else 0):
        if formats:
            yield DRAWS[formats[attempt % len(formats)]](rng)
        if patterns:
            try:
                yield patterns[attempt % len(patterns)].write(rng, budget, least, most)
            except Unsatisfiable:
                budget.spend()
    yield from (text for text in merged.examples() if isinstance(text, str))
    if patterns:
        return
    plain = "".join(filter(str.isalpha, name[-24:])).lower()  # of `home_city` or `fileName`
    words = [rng.choice(next((NAMED[ending] for ending in NAMED if plain.endswith(ending)), WORDS))]
    length = len(words[0])
    while length < least:
        words.append(rng.choice(WORDS))
        length += 1 + len(words[-1])
    cut = " ".join(words)[: max(least, min(length, most))]
    yield cut[:-1] + "s" if cut.endswith(" ") else cut
