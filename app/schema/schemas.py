"""The way in: schemas compiled once, and values drawn from them."""

from __future__ import annotations

import json
import sys
from math import isfinite
from random import Random
from threading import Lock

import msgspec
from cachetools import LRUCache

from app.clock.pause import Slices
from app.schema.choices import Heights
from app.schema.document import JSON, PART, STEPS_A_PART, Document
from app.schema.draw import Draw
from app.schema.errors import Allowance, Contradiction, SchemaError, Unsatisfiable
from app.schema.judge import Judge
from app.schema.ranges import Ranges
from app.schema.reader import read

STEPS = 12_000
"""Steps that one draw may take."""
ATTEMPTS = 6
"""Values drawn and judged, half of them with ``format`` as a rule, before giving up."""
MOST_BYTES = 500_000
"""Of the longest schema that is read, as JSON."""
BYTES_A_STEP = 500
"""Bytes of JSON that are written or read in one step of work."""
LIMIT_BYTES = 8 << 20
"""Memory of all schemas that are kept compiled."""
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

    def sample(self, rng: Random, ranges: Ranges) -> JSON:
        """A JSON value that satisfies the schema.

        It does so whether ``format`` is a rule or, as the specification has it, a remark; where no
        such value is found, in one of the two readings. Raises Unsatisfiable when no value was
        found, after about 100 ms of work at most, in slices between which other greenlets run.
        """
        allowance = Allowance(STEPS, self._slices)
        try:
            return self._sample(rng, ranges, allowance)
        finally:
            allowance.settle()

    def _sample(self, rng: Random, ranges: Ranges, allowance: Allowance) -> JSON:
        strictly: JSON | _Nothing = NOTHING
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                value = self._try(rng, ranges, allowance, formats, frugal=attempt % 2 == 1)
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
        self, rng: Random, ranges: Ranges, allowance: Allowance, formats: bool, frugal: bool
    ) -> JSON | _Nothing:
        """A value, judged; nothing when this try has found none."""
        root = self._document.root
        draw = Draw(self._document, self._heights, self._judge, ranges, rng, allowance, formats, frugal)
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


class Schemas:
    """Compiled schemas, the last used ones kept within `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._kept: LRUCache[tuple[bytes, bool], tuple[CompiledSchema, int]]
        self._kept = LRUCache(limit_bytes, getsizeof=lambda kept: kept[1])
        self._slices = Slices()
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """Memory that the kept schemas hold."""
        return int(self._kept.currsize)

    def compile(self, schema: object, lenient: bool = False) -> CompiledSchema:
        """`schema`, decoded JSON, ready to draw from; with `lenient` what is wrong in it is left out.

        Raises SchemaError, also for a reference to another document: none is fetched.
        """
        text = self._canonical(schema)
        with self._lock:
            kept = self._kept.get((text, lenient))
        return self._compiled(text, lenient) if kept is None else kept[0]

    def _compiled(self, text: bytes, lenient: bool) -> CompiledSchema:
        self._slices.spend(len(text) // BYTES_A_STEP)
        try:
            document = read(json.loads(text), lenient, self._slices)
        except RecursionError:
            raise SchemaError("the schema is too deep") from None
        compiled = CompiledSchema(document, self._slices)
        size_bytes = ENTRY_BYTES + sys.getsizeof(text) + document.size_bytes
        if size_bytes <= self.limit_bytes:
            with self._lock:
                self._kept[text, lenient] = compiled, size_bytes
        return compiled

    def _canonical(self, schema: object) -> bytes:
        """`schema` as JSON, its properties in their order: that of the arguments drawn."""
        self._check(schema)
        try:
            text = msgspec.json.encode(schema)
        except (ValueError, TypeError):  # such as half a surrogate pair
            raise _not_json() from None
        except RecursionError:
            raise SchemaError("the schema is too deep") from None
        if len(text) > MOST_BYTES:
            raise _too_large()
        self._slices.spend(1 + len(text) // BYTES_A_STEP)
        return text

    def _check(self, schema: object) -> None:
        """Raise SchemaError for what is too long as JSON, before that is written in one go, and for NaN."""
        length, waiting = 0, [schema]
        for number, each in enumerate(waiting, start=1):  # the list grows meanwhile
            if isinstance(each, str):
                length += len(each)
            elif isinstance(each, dict):
                length += len(each)
                waiting += each.values() if length <= MOST_BYTES else ()
            elif isinstance(each, list):
                length += len(each)
                waiting += each if length <= MOST_BYTES else ()
            elif isinstance(each, float) and not isfinite(each):
                raise _not_json()
            if length > MOST_BYTES:
                raise _too_large()
            if number % PART == 0:
                self._slices.spend(STEPS_A_PART)


def _not_json() -> SchemaError:
    return SchemaError("the schema holds what JSON cannot")


def _too_large() -> SchemaError:
    return SchemaError(f"a schema of more than {MOST_BYTES} bytes is too large")
