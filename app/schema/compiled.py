"""A schema that has been read, and values drawn from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from app.schema.document import JSON, Document
from app.schema.draw import Draw
from app.schema.errors import SchemaError, Unsatisfiable, WorkBudget, WorkExhausted
from app.schema.ranges import Ranges, Size
from app.schema.reader import read
from app.schema.validation import accepts

STEPS = 12_000
"""Steps of work that one draw may take, with all its attempts: about 100 ms."""
ATTEMPTS = 6
"""Values drawn and validated, half of them with ``format`` as a rule, before giving up."""
ENTRY_BYTES, BYTES_A_SCHEMA, BYTES_A_CHARACTER = 800, 600, 14
"""Memory of a kept schema, of each object in it, and of each character of its JSON: measured, at the most."""


class CompiledSchema:
    """A schema ready to draw from; `size_bytes` is the memory that it holds at most."""

    def __init__(self, document: Document, size_bytes: int) -> None:
        self._document = document
        self.size_bytes = size_bytes

    def sample(self, rng: Random, ranges: Ranges, size: Size = Size.USUAL) -> JSON:
        """Returns a JSON value that satisfies the schema, of `size` or, where that fails, smaller.

        It does so whether ``format`` is a rule or, as the specification has it, a remark; where no
        such value is found, in one of the two readings. Raises SchemaError when no value was
        found, after about 100 ms of work at most, with pauses in which other greenlets run.
        """
        budget, fallback = WorkBudget(STEPS), list[JSON]()
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                tried = min(size, Size.FRUGAL) if attempt % 2 else size
                draw = Draw(self._document, ranges, rng, budget, formats, tried)
                for value in self._valid(draw):
                    if not formats or self._holds_without_formats(value, budget):
                        return value
                    fallback = [value]
        except WorkExhausted:
            if not fallback:
                raise
        if not fallback:
            raise Unsatisfiable("no value was found that satisfies the schema")
        return fallback[0]

    def accepts(self, value: JSON) -> bool:
        """Returns True when `value` satisfies the schema, where ``format`` is a remark.

        Raises SchemaError when that takes too much work.
        """
        return accepts(self._document, self._document.root, value, WorkBudget(STEPS), formats=False)

    def _valid(self, draw: Draw) -> Iterator[JSON]:
        """Yields the value of `draw`, if it has found one that is valid."""
        root = self._document.root
        try:
            value = draw.value([root])
        except Unsatisfiable:
            return
        except RecursionError:
            raise WorkExhausted("the schema is too deep to be satisfied") from None
        if draw.accepts(root, value):
            yield value

    def _holds_without_formats(self, value: JSON, budget: WorkBudget) -> bool:
        document = self._document
        return not document.reads_formats_backwards or accepts(
            document, document.root, value, budget, formats=False
        )


def compile_schema(text: bytes, lenient: bool) -> CompiledSchema:
    """Returns the schema in `text`, which is JSON. Raises SchemaError."""
    try:
        document = read(json.loads(text), lenient)
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    held = BYTES_A_SCHEMA * text.count(b"{") + BYTES_A_CHARACTER * len(text)
    return CompiledSchema(document, ENTRY_BYTES + held + document.pattern_bytes)
