"""A schema that has been read, and values drawn from it."""

from __future__ import annotations

import json
import sys
from random import Random

from app.clock.pause import Slices
from app.schema.choices import Heights
from app.schema.document import JSON, Document
from app.schema.draw import Draw
from app.schema.errors import Allowance, Contradiction, SchemaError, Unsatisfiable
from app.schema.judge import Judge
from app.schema.ranges import Ranges, Size
from app.schema.reader import read

STEPS = 12_000
"""Steps that one draw may take."""
ATTEMPTS = 6
"""Values drawn and judged, half of them with ``format`` as a rule, before giving up."""
ENTRY_BYTES = 1_200
"""Memory of a kept schema beside its document: the objects around it, its place in the cache; measured."""


class _Nothing:
    """Stands for a value that was not found: null is one, too."""


NOTHING = _Nothing()


class CompiledSchema:
    """A schema ready to draw from."""

    def __init__(self, document: Document, slices: Slices) -> None:
        self._document = document
        self._slices = slices
        self._heights = Heights(document, slices)
        self._judge = Judge(document)

    def sample(self, rng: Random, ranges: Ranges, size: Size = Size.USUAL) -> JSON:
        """A JSON value that satisfies the schema, of `size` or, where that fails, smaller.

        It does so whether ``format`` is a rule or, as the specification has it, a remark; where no
        such value is found, in one of the two readings. Raises Unsatisfiable when no value was
        found, after about 100 ms of work at most, in slices between which other greenlets run.
        """
        allowance = Allowance(STEPS, self._slices)
        try:
            return self._sample(rng, ranges, allowance, size)
        finally:
            allowance.settle()

    def accepts(self, value: JSON) -> bool:
        """Whether `value` satisfies the schema, where ``format`` is a remark. SchemaError: too much work."""
        allowance = Allowance(STEPS, self._slices)
        try:
            return self._judge.accepts(self._document.root, value, allowance, formats=False)
        finally:
            allowance.settle()

    def _sample(self, rng: Random, ranges: Ranges, allowance: Allowance, size: Size) -> JSON:
        strictly: JSON | _Nothing = NOTHING
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                tried = min(size, Size.FRUGAL) if attempt % 2 else size
                value = self._try(rng, ranges, allowance, formats, tried)
                if isinstance(value, _Nothing):
                    continue
                if not formats or self._holds_without_formats(value, allowance):
                    return value
                strictly = value
        except Unsatisfiable:
            if isinstance(strictly, _Nothing):
                raise
        if isinstance(strictly, _Nothing):
            raise Unsatisfiable("no value was found that satisfies the schema")
        return strictly

    def _try(
        self, rng: Random, ranges: Ranges, allowance: Allowance, formats: bool, size: Size
    ) -> JSON | _Nothing:
        """A value, judged; nothing when this try has found none."""
        root = self._document.root
        draw = Draw(self._document, self._heights, self._judge, ranges, rng, allowance, formats, size)
        try:
            value = draw.value([root])
        except Contradiction:
            return NOTHING
        except RecursionError:
            raise Unsatisfiable("the schema is too deep to be satisfied") from None
        return value if draw.accepts(root, value) else NOTHING

    def _holds_without_formats(self, value: JSON, allowance: Allowance) -> bool:
        if not self._document.reads_formats_backwards:
            return True
        return self._judge.accepts(self._document.root, value, allowance, formats=False)


def compile_schema(text: bytes, lenient: bool, slices: Slices) -> tuple[CompiledSchema, int]:
    """The schema in `text`, and the bytes of memory that it takes when it is kept. Raises SchemaError."""
    try:
        document = read(json.loads(text), lenient, slices)
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    return CompiledSchema(document, slices), ENTRY_BYTES + sys.getsizeof(text) + document.size_bytes
