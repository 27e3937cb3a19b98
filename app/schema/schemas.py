"""The way in: schemas compiled once, and values drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from threading import Lock
from typing import Any

from cachetools import LRUCache

from app.schema.document import Schema
from app.schema.draw import Draw
from app.schema.errors import Allowance, Contradiction, SchemaError, Unsatisfiable
from app.schema.heights import Heights
from app.schema.ranges import Ranges
from app.schema.reader import read
from app.schema.strict import check_strict
from app.schema.verdict import Judge

STEPS = 12_000
"""Steps that one draw may take."""
ATTEMPTS = 6
"""Values drawn and judged, half of them with ``format`` as a rule, before giving up."""
MOST_TEXT = 500_000
"""Characters of the longest schema that is read, as JSON."""
CACHED_TEXT = 2_000_000
"""Characters of all schemas that are kept compiled."""
UNKNOWN = object()


class CompiledSchema:
    """A schema ready to draw from. Raises SchemaError for what is no JSON Schema or not supported."""

    def __init__(self, raw: Schema, lenient: bool = False) -> None:
        self.document = read(raw, lenient)
        self._heights = Heights(self.document)
        self._judge = Judge(self.document)

    def sample(self, rng: Random, ranges: Ranges) -> Any:
        """A JSON value that satisfies the schema.

        It does so whether ``format`` is a rule or, as the specification has it, a remark; where no
        such value is found, in one of the two readings. Raises Unsatisfiable when no value was
        found, after about 100 ms of work at most.
        """
        allowance = Allowance(STEPS)
        strictly = UNKNOWN
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                value = self._try(rng, ranges, allowance, formats, frugal=attempt % 2 == 1)
                if value is UNKNOWN:
                    continue
                if not formats or self._holds_without_formats(value, allowance):
                    return value
                strictly = value
        except Unsatisfiable:
            if strictly is UNKNOWN:
                raise
        if strictly is UNKNOWN:
            raise Unsatisfiable("no value was found that satisfies the schema")
        return strictly

    def _try(self, rng: Random, ranges: Ranges, allowance: Allowance, formats: bool, frugal: bool) -> Any:
        """A value, judged; UNKNOWN when this try has found none."""
        draw = Draw(self.document, self._heights, self._judge, ranges, rng, allowance, formats, frugal)
        try:
            value = draw.value([self.document.root])
        except Contradiction:
            return UNKNOWN
        except RecursionError:
            raise Unsatisfiable("the schema is too deep to be satisfied") from None
        return value if draw.accepts(self.document.root, value) else UNKNOWN

    def _holds_without_formats(self, value: Any, allowance: Allowance) -> bool:
        if not self.document.reads_formats_backwards:
            return True
        return self._judge.accepts(self.document.root, value, allowance, formats=False)


class Schemas:
    """Compiled schemas, the last used ones kept, up to `size` characters of JSON."""

    def __init__(self, size: int = CACHED_TEXT) -> None:
        self._compiled: LRUCache[tuple[str, bool], tuple[CompiledSchema, int]]
        self._compiled = LRUCache(size, getsizeof=lambda kept: kept[1])
        self._lock = Lock()

    def compile(self, schema: Schema, lenient: bool = False) -> CompiledSchema:
        """`schema` ready to draw from; with `lenient` what is wrong in it is left out.

        Raises SchemaError, also for a reference to another document: none is fetched.
        """
        text = _canonical(schema)
        with self._lock:
            kept = self._compiled.get((text, lenient))
        if kept is None:
            kept = CompiledSchema(json.loads(text), lenient), len(text)
            with self._lock:
                self._compiled[text, lenient] = kept
        return kept[0]


def sample(schema: Schema, rng: Random, ranges: Ranges, lenient: bool = False) -> Any:
    """A JSON value that satisfies `schema`, compiled for this one draw; see `CompiledSchema.sample`."""
    return CompiledSchema(json.loads(_canonical(schema)), lenient).sample(rng, ranges)


def check_schema(schema: Any, strict: bool = False) -> None:
    """Raise SchemaError unless `schema` is a JSON Schema that can be drawn from.

    `strict` also refuses keywords and uses beyond those of simulator.md 7.5.
    """
    if strict:
        check_strict(schema)
    CompiledSchema(json.loads(_canonical(schema)), False)


def _canonical(schema: Mapping[str, Any] | bool) -> str:
    """`schema` as JSON, its properties in their order: that of the arguments drawn."""
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()  # half a surrogate pair cannot be sent
    except (ValueError, TypeError):
        raise SchemaError("the schema holds what JSON cannot") from None
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    if len(text) > MOST_TEXT:
        raise SchemaError(f"a schema of {len(text)} characters is too large")
    return text
