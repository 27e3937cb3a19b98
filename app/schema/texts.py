"""Draws strings: of a format, of a pattern, of a length, or just words."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from app.schema.demands import Demands
from app.schema.errors import Allowance, Contradiction, Unsatisfiable
from app.schema.formats import CHECKER, DRAWS
from app.schema.pattern import Pattern
from app.schema.pattern_pieces import LONGEST
from app.schema.words import WORDS, words_for

TRIES = 12


def draw_text(demands: Demands, rng: Random, allowance: Allowance, name: str, formats: bool) -> str:
    """A string for a property called `name`; ``format`` is a rule only with `formats`.

    Raises Contradiction when none was found.
    """
    least = demands.counts.get("minLength", 0)
    most = demands.counts.get("maxLength", LONGEST)
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
    for attempt in range(TRIES if formats or demands.patterns else 0):
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
