"""Replies that have a form: JSON of a schema, a match of an expression, one of some texts."""

from __future__ import annotations

import json
from random import Random

from app.engine.reply import STOP, Reply
from app.engine.request import Constraint
from app.schema import Ranges, Schemas
from app.tokenization import Tokenizer
from config.settings import ToolSettings

TRIES = 4
"""Texts drawn to find one that fits the limit."""


class StructuredReplies:
    """Makes them. All raise SchemaError when nothing satisfies what is asked for."""

    def __init__(self, tokenizer: Tokenizer, schemas: Schemas, settings: ToolSettings) -> None:
        self._tokenizer = tokenizer
        self._schemas = schemas
        self.use(settings)

    def use(self, settings: ToolSettings) -> None:
        """Make them by these settings from now on."""
        self._ranges = Ranges.of(settings)

    def constrained(self, constraint: Constraint, most: int, rng: Random) -> Reply:
        """A text that satisfies `constraint`, cut off at `most` tokens when none that is drawn is short."""
        ids: list[int] = []
        for _ in range(TRIES):
            ids = self._tokenizer.encode(self._text(constraint, rng))
            if len(ids) <= most:
                break
        return Reply(self._tokenizer.pieces(ids), ids, STOP).cut(most)

    def _text(self, constraint: Constraint, rng: Random) -> str:
        if constraint.choices:
            return rng.choice(constraint.choices)
        if constraint.regex is not None:
            return self._schemas.matching_text(constraint.regex, rng)
        schema = True if constraint.schema is None else constraint.schema
        return json.dumps(self._schemas.compile(schema).sample(rng, self._ranges), ensure_ascii=False)
