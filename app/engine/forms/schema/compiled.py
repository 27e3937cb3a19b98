"""A compiled schema, and values drawn from its document."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from app.engine.forms.schema.document import JSON, Document
from app.engine.forms.schema.draw import Draw
from app.engine.forms.schema.errors import SchemaError, Unsatisfiable, WorkBudget, WorkExhausted
from app.engine.forms.schema.ranges import Ranges, Size
from app.engine.forms.schema.reader import read
from app.engine.forms.schema.validation import accepts

STEPS = 12_000
"""Steps of one draw with all its attempts: about 100 ms of work."""
ATTEMPTS = 6
"""Values drawn and validated before giving up, the first half with ``format`` as a rule."""
ENTRY_BYTES, BYTES_A_SCHEMA, BYTES_A_CHARACTER = 800, 600, 14
"""Most memory of a kept schema, of each object in it, and of each character of its JSON; measured."""


class CompiledSchema:
    """A schema ready to draw from; `size_bytes` is its greatest memory."""

    def __init__(self, document: Document, size_bytes: int) -> None:
        self._document = document
        self.size_bytes = size_bytes

    def sample(self, rng: Random, ranges: Ranges, size: Size = Size.USUAL) -> JSON:
        """Returns a JSON value that satisfies the schema, of `size` or, where that fails, smaller.

        The value is valid both with ``format`` as a rule and, as in the specification, as an annotation.
        If no such value is found, the value is valid in one of the two readings.

        Raises SchemaError without a value, after about 100 ms of work at most. Pauses for other greenlets.
        """
        budget, fallback = WorkBudget(STEPS), list[JSON]()
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                tried = min(size, Size.FRUGAL) if attempt % 2 else size
                draw = Draw(self._document, ranges, rng, budget, formats, tried)
                with suppress(Unsatisfiable):
                    value = draw.value([self._document.root])
                    if accepts(self._document, self._document.root, value, budget, formats=False):
                        return value  # texts were drawn according to their format
                    if formats and not fallback and draw.accepts(self._document.root, value):
                        fallback = [value]
        except RecursionError:
            raise WorkExhausted("the schema is too deep to be satisfied") from None
        except WorkExhausted:
            if not fallback:
                raise
        if not fallback:
            raise Unsatisfiable("no value was found that satisfies the schema")
        return fallback[0]

    def accepts(self, value: JSON) -> bool:
        """Returns True when `value` satisfies the schema, with ``format`` as an annotation.

        Raises SchemaError when the check takes too much work.
        """
        return accepts(self._document, self._document.root, value, WorkBudget(STEPS), formats=False)


def compile_schema(text: bytes, lenient: bool) -> CompiledSchema:
    """Returns the schema in the JSON `text`. Raises SchemaError."""
    try:
        document = read(text, lenient)
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    held = BYTES_A_SCHEMA * text.count(b"{") + BYTES_A_CHARACTER * len(text)
    return CompiledSchema(document, ENTRY_BYTES + held + document.pattern_bytes)
