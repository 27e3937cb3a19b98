"""Regular expressions: whether a text satisfies one, and texts that do."""

from __future__ import annotations

import re
from random import Random
from time import thread_time

import regex

from app.schema.errors import Allowance, SchemaError, Unsatisfiable
from app.schema.pattern_dialect import translate
from app.schema.pattern_parse import PLAIN, parse
from app.schema.pattern_pieces import LONGEST, Pen, Piece, Repeat

MOST_SOURCE = 4000
"""Characters of the longest pattern that is read."""
MOST_SIZE = 20_000
"""Pieces that a pattern may have with its repeats written out: compiling costs memory for each."""
MATCH_S = 0.01
"""Seconds after which a search is given up: the pattern makes it try too many ways."""
STEP_S = 8e-6
"""Seconds of CPU time that a search may take for one step of its allowance."""
TRIES = 40
USUAL_EXTRA, MOST_EXTRA = 8, 24
"""Characters drawn beyond the shortest text, usually and after some failures."""
STEPS = 20_000


class Pattern(str):
    """A regular expression in Python's dialect, compiled; `source` is how it was written.

    Raises SchemaError for a pattern that is wrong, not supported or too large.
    """

    source: str
    _engine: regex.Pattern[str]
    _piece: Piece

    def __new__(cls, source: str) -> Pattern:
        if len(source) > MOST_SOURCE:
            raise SchemaError(f"a pattern of {len(source)} characters is too long")
        translated = translate(source)
        pattern = super().__new__(cls, translated)
        pattern.source = source
        try:
            pattern._piece = parse(translated)
            if pattern._piece.size > MOST_SIZE:
                raise SchemaError(f"the pattern {_short(source)} repeats too much")
            pattern._engine = regex.compile(translated, regex.ASCII)
        except (re.error, regex.error) as error:
            raise SchemaError(f"the pattern {_short(source)} is not understood: {error}") from None
        except (RecursionError, OverflowError, MemoryError):
            raise SchemaError(f"the pattern {_short(source)} is too deep or too large") from None
        return pattern

    @property
    def risky(self) -> bool:
        """True when a search may try very many ways: a repeat in a repeat, or several open ones."""
        return _open_repeats(self._piece) > 1

    def found_in(self, text: str, allowance: Allowance) -> bool:
        """True when some part of `text` matches, as JSON Schema wants it; SchemaError if too costly."""
        return self._search(text, allowance, whole=False)

    def _search(self, text: str, allowance: Allowance, whole: bool) -> bool:
        search = self._engine.fullmatch if whole else self._engine.search
        begun = thread_time()
        try:
            found = search(text, timeout=MATCH_S) is not None
            allowance.spend(1 + int((thread_time() - begun) / STEP_S))
            return found
        except (TimeoutError, MemoryError):
            raise SchemaError(f"the pattern {_short(self.source)} takes too long to match") from None

    def write(
        self, rng: Random, allowance: Allowance, least: int = 0, most: int | None = None, whole: bool = False
    ) -> str:
        """A text of `least` to `most` characters that satisfies the pattern, all of it if `whole`.

        Raises Unsatisfiable when none was found.
        """
        piece = self._piece
        highest = min(LONGEST, LONGEST if most is None else most)
        lowest = max(piece.least, least if whole else min(least, piece.most))
        for attempt in range(TRIES if lowest <= min(highest, piece.most) else 0):
            extra = USUAL_EXTRA if attempt < TRIES // 4 else MOST_EXTRA
            length = rng.randint(lowest, min(lowest + extra, highest, piece.most))
            pen = Pen(rng, allowance, look_around=attempt % 4 == 3)
            piece.write(length, pen)
            text = "".join(pen.parts)
            for padded in (text,) if len(text) >= least else _padded(text, least, rng):
                if least <= len(padded) <= highest and self._search(padded, allowance, whole):
                    return padded
        raise Unsatisfiable(f"no text was found for the pattern {_short(self.source)}")


def matching_text(pattern: str, rng: Random, whole: bool = True) -> str:
    """A text that matches `pattern` from start to end, or, with `whole` false, contains a match.

    Raises SchemaError for a pattern that is wrong or not supported, Unsatisfiable when no text was found.
    """
    return Pattern(pattern).write(rng, Allowance(STEPS), whole=whole)


def _padded(text: str, length: int, rng: Random) -> tuple[str, ...]:
    """`text` made as long as `length`, at its end or its start."""
    padding = "".join(rng.choices(PLAIN, k=min(length, LONGEST) - len(text)))
    return text + padding, padding + text


def _open_repeats(piece: Piece) -> int:
    """How many repeats without a small limit there are, those inside of others counted twice."""
    below = [part for part in vars(piece).values() if isinstance(part, Piece)]
    for parts in vars(piece).values():
        if isinstance(parts, list):
            below += parts
    inner = sum(map(_open_repeats, below))
    if isinstance(piece, Repeat) and piece.highest > 1:
        wide = piece.highest > 16
        return inner * 2 + wide
    return inner


def _short(source: str) -> str:
    return repr(source if len(source) <= 60 else source[:57] + "...")
