"""The way in: schemas compiled once. What compiles them is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import isfinite
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import msgspec
from cachetools import LRUCache
from gevent._hub_local import get_hub_if_exists

from app.clock.pause import Slices, call_off_hub
from app.schema.errors import SchemaError

if TYPE_CHECKING:
    from app.schema.compiled import CompiledSchema

T = TypeVar("T")

MACHINERY = "app.schema.compiled"
"""With the libraries under it, it takes a twentieth of a second to import: a sixth of a server's start."""
MOST_BYTES = 500_000
"""Bytes of the longest schema that is read, as JSON."""
MOST_VALUES = 100_000
"""Values in the largest schema; looking at them takes up to 15 ms."""
LONG_BYTES = 2_000
"""Bytes of a text that takes milliseconds to compile: a native thread does so, beside the event loop."""
COMPILE_STEPS = 30
"""Steps of 10 us that compiling a short schema takes; many of them pause in between."""
LIMIT_BYTES = 8 << 20
"""Memory of all schemas that are kept compiled."""


class Schemas:
    """Compiled schemas, the last used ones kept within `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._kept: LRUCache[tuple[bytes, bool], CompiledSchema]
        self._kept = LRUCache(limit_bytes, getsizeof=lambda kept: kept.size_bytes)
        self._slices = Slices()
        self._lock = Lock()
        self._is_loaded = False

    @property
    def size_bytes(self) -> int:
        """Memory that the kept schemas hold at most."""
        return int(self._kept.currsize)

    def load(self) -> None:
        """Loads what compiles schemas, beside the event loop."""
        if not self._is_loaded:
            call_off_hub(import_module, MACHINERY)
            self._is_loaded = True

    def matching_text(self, pattern: str, rng: Random) -> str:
        """Returns a text that matches `pattern` as a whole. Raises SchemaError."""
        self.load()
        from app.schema.patterns import Pattern, matching_text

        return matching_text(off_hub_if_long(len(pattern), lambda: Pattern(pattern)), rng)

    def compile(self, schema: object, lenient: bool = False) -> CompiledSchema:
        """Returns `schema`, decoded JSON, ready to draw from; with `lenient` what is wrong in it is left out.

        Raises SchemaError, also for a reference to another document: none is fetched.
        """
        text = _canonical(schema)
        with self._lock:
            kept = self._kept.get((text, lenient))
        return kept or self._compiled(text, lenient)

    def _compiled(self, text: bytes, lenient: bool) -> CompiledSchema:
        self.load()
        from app.schema.compiled import compile_schema

        self._slices.spend(COMPILE_STEPS)
        compiled = off_hub_if_long(len(text), lambda: compile_schema(text, lenient))
        if compiled.size_bytes <= self.limit_bytes:
            with self._lock:
                self._kept[text, lenient] = compiled
        return compiled


def off_hub_if_long(length: int, work: Callable[[], T]) -> T:
    """Returns what `work` returns, done in a native thread for a text of a `length` that takes long.

    A thread without an event loop does the work itself.
    """
    is_long = length > LONG_BYTES and get_hub_if_exists() is not None
    return call_off_hub(work) if is_long else work()


def _canonical(schema: object) -> bytes:
    """Returns `schema` as JSON, its properties in their order, which is that of the arguments drawn."""
    _check(schema)
    try:
        text = msgspec.json.encode(schema)
    except (ValueError, TypeError):  # such as half a surrogate pair
        raise SchemaError("the schema holds what JSON cannot") from None
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    if len(text) > MOST_BYTES:
        raise _too_large()
    return text


def _check(schema: object) -> None:
    """Raises SchemaError for a schema that is too large, before that is written as JSON, and for NaN."""
    length, waiting = 0, [schema]
    for each in waiting:  # the list grows meanwhile
        if isinstance(each, str):
            length += len(each)
        elif isinstance(each, (dict, list)):
            if len(waiting) + len(each) > MOST_VALUES:
                raise SchemaError(f"a schema of more than {MOST_VALUES} values is too large")
            waiting += each.values() if isinstance(each, dict) else each
        elif isinstance(each, float) and not isfinite(each):
            raise SchemaError("the schema holds what JSON cannot")
    if length > MOST_BYTES:
        raise _too_large()


def _too_large() -> SchemaError:
    return SchemaError(f"a schema of more than {MOST_BYTES} bytes is too large")
