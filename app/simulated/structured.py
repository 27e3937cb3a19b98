"""Replies that have a form: JSON of a schema, a match of an expression, one of some texts, or derived."""

from __future__ import annotations

import json
from random import Random

from app.engine.reply import STOP, Reply
from app.engine.request import Constraint
from app.grammar.writing import write
from app.schema import Ranges, Schemas
from app.simulated.corpus import Corpus
from app.tokenization import Tokenizer
from config.settings import ToolSettings

TRIES = 4
"""Texts drawn to find one that fits the limit."""
USUAL_SIZE = 160
"""Characters of a text that a grammar derives, where it leaves the choice."""
CHARACTERS_A_TOKEN = 3
SHARES = (1, 0.5, 0.2, 0)
"""Of that size, in each try: the last one is the shortest text."""


class StructuredReplies:
    """Makes them. All raise SchemaError when nothing satisfies what is asked for."""

    def __init__(
        self, tokenizer: Tokenizer, corpus: Corpus, schemas: Schemas, settings: ToolSettings
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._schemas = schemas
        self.use(settings)

    def use(self, settings: ToolSettings) -> None:
        """Make them by these settings from now on."""
        self._ranges = Ranges.of(settings)

    def constrained(self, constraint: Constraint, most: int, rng: Random) -> Reply:
        """A text that satisfies `constraint`, cut off at `most` tokens when none that is drawn is short."""
        ids: list[int] = []
        for attempt in range(TRIES):
            ids = self._tokenizer.encode(self._text(constraint, most, attempt, rng))
            if len(ids) < most:  # and the end of text fits, too
                break
        return Reply(self._tokenizer.pieces(ids), ids, STOP).cut(most)

    def _text(self, constraint: Constraint, most: int, attempt: int, rng: Random) -> str:
        if constraint.grammar is not None:
            size = min(USUAL_SIZE, most * CHARACTERS_A_TOKEN) * SHARES[attempt]
            return write(constraint.grammar, int(size), rng, self._ranges, self._speak)
        if constraint.choices:
            return rng.choice(constraint.choices)
        if constraint.regex is not None:
            return self._schemas.matching_text(constraint.regex, rng)
        schema = True if constraint.schema is None else constraint.schema
        return json.dumps(self._schemas.compile(schema).sample(rng, self._ranges), ensure_ascii=False)

    def _speak(self, characters: int, rng: Random) -> str:
        """Whole words of a sentence."""
        _, texts = self._corpus.compose(characters // CHARACTERS_A_TOKEN, rng)
        return "".join(texts)[:characters].rpartition(" ")[0]
