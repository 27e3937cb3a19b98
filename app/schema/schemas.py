"""The way in: schemas compiled once. What compiles them is loaded when it is first needed."""

from __future__ import annotations

from importlib import import_module
from math import isfinite
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

import msgspec
from cachetools import LRUCache

from app.clock.pause import Slices, call_off_hub
from app.schema.errors import PART, STEPS_A_PART, SchemaError

if TYPE_CHECKING:
    from app.schema.compiled import CompiledSchema

MACHINERY = "app.schema.compiled"
"""With the libraries under it, it takes a twentieth of a second to import: a sixth of a server's start."""
MOST_BYTES = 500_000
"""Of the longest schema that is read, as JSON."""
BYTES_A_STEP = 500
"""Bytes of JSON that are written or read in one step of work."""
LIMIT_BYTES = 8 << 20
"""Memory of all schemas that are kept compiled."""


class Schemas:
    """Compiled schemas, the last used ones kept within `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._kept: LRUCache[tuple[bytes, bool], tuple[CompiledSchema, int]]
        self._kept = LRUCache(limit_bytes, getsizeof=lambda kept: kept[1])
        self._slices = Slices()
        self._lock = Lock()
        self._is_loaded = False

    @property
    def size_bytes(self) -> int:
        """Memory that the kept schemas hold."""
        return int(self._kept.currsize)

    def load(self) -> None:
        """Load what compiles schemas, beside the event loop."""
        if not self._is_loaded:
            call_off_hub(import_module, MACHINERY)
            self._is_loaded = True

    def matching_text(self, pattern: str, rng: Random) -> str:
        """See `app.schema.patterns.matching_text`."""
        self.load()
        from app.schema.patterns import matching_text

        return matching_text(pattern, rng)

    def compile(self, schema: object, lenient: bool = False) -> CompiledSchema:
        """`schema`, decoded JSON, ready to draw from; with `lenient` what is wrong in it is left out.

        Raises SchemaError, also for a reference to another document: none is fetched.
        """
        text = self._canonical(schema)
        with self._lock:
            kept = self._kept.get((text, lenient))
        return self._compiled(text, lenient) if kept is None else kept[0]

    def _compiled(self, text: bytes, lenient: bool) -> CompiledSchema:
        self.load()
        from app.schema.compiled import compile_schema

        self._slices.spend(len(text) // BYTES_A_STEP)
        compiled, size_bytes = compile_schema(text, lenient, self._slices)
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
