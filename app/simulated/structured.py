"""Replies that have to have a form: JSON of a schema, a match of an expression, one of some texts."""

from __future__ import annotations

import json
from random import Random

from app.engine.reply import STOP, Script
from app.engine.request import Constraint
from app.schema import Ranges, Schemas, matching_text
from app.tokenization import Tokenizer

TRIES = 4
"""Texts drawn to find one that fits the limit."""


def constrained(
    constraint: Constraint,
    most: int,
    tokenizer: Tokenizer,
    schemas: Schemas,
    ranges: Ranges,
    rng: Random,
) -> Script:
    """A reply that satisfies `constraint`; cut off at `most` tokens when none that is drawn is so short.

    SchemaError when nothing satisfies it.
    """
    ids: list[int] = []
    for _ in range(TRIES):
        ids = tokenizer.encode(text_of(constraint, schemas, ranges, rng))
        if len(ids) <= most:
            break
    return Script(tokenizer.pieces(ids), ids, STOP).cut(most)


def text_of(constraint: Constraint, schemas: Schemas, ranges: Ranges, rng: Random) -> str:
    """Draw a text that satisfies `constraint`. SchemaError when there is none."""
    if constraint.choices:
        return rng.choice(constraint.choices)
    if constraint.regex is not None:
        return matching_text(constraint.regex, rng)
    schema = True if constraint.schema is None else constraint.schema
    return json.dumps(schemas.compile(schema).sample(rng, ranges), ensure_ascii=False)
