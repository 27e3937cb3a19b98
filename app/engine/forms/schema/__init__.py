"""Values that satisfy a JSON Schema, and texts that match a regular expression.

`Schemas` is a cache of compiled schemas; the compiler is imported at its first use. vLLM's
structured outputs refuse some valid schemas: its first backend, xgrammar, lacks keywords; a schema
with one of these goes to llguidance, which refuses the keywords that it lacks. A third backend
takes `patternProperties`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

import msgspec
from cachetools import LRUCache, cachedmethod

from app.base.clock.pause import Slices, call_long, call_off_hub
from app.engine.forms.schema.bounds import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS, WorkBudget
from app.engine.forms.schema.bounds import SchemaError as SchemaError
from app.engine.forms.schema.bounds import Size as Size
from app.engine.forms.schema.bounds import Unsatisfiable as Unsatisfiable

if TYPE_CHECKING:
    from app.engine.forms.schema.draw import CompiledSchema

MACHINERY = "app.engine.forms.schema.draw"
"""Module of the compiler.

Its import takes 50 ms with its libraries: a sixth of a server's start.
"""
MOST_BYTES = 500_000
"""Bytes of the longest accepted schema, as JSON."""
CHARACTER = 8
"""Work of compiling a character, in bytes as `call_long` counts them."""
TEXT_STEPS = 20_000
"""Steps of a text that matches a pattern."""
COMPILE_STEPS = 30
"""Steps of 10 us to compile a short schema; many compilations pause in between."""
LIMIT_BYTES = 8 << 20


class Schemas:
    """LRU cache of compiled schemas within `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._kept: LRUCache[tuple[bytes, bool], CompiledSchema]
        self._kept = LRUCache(limit_bytes, getsizeof=lambda kept: kept.size_bytes)
        self._slices = Slices()
        self._lock = Lock()
        self._is_loaded = False

    @property
    def size_bytes(self) -> int:
        return int(self._kept.currsize)

    def load(self) -> None:
        if not self._is_loaded:  # `sys.modules` has a module already while a thread imports it
            call_off_hub(import_module, MACHINERY)
            self._is_loaded = True

    def matching_text(self, pattern: str, rng: Random) -> str:
        """Returns a text that `pattern` matches as a whole. Raises SchemaError."""
        self.load()
        from app.engine.forms.schema.patterns import Pattern

        compiled = call_long(CHARACTER * len(pattern), Pattern, pattern)
        return compiled.write(rng, WorkBudget(TEXT_STEPS), whole=True)

    def compile(self, schema: object, lenient: bool = False) -> "CompiledSchema":
        """Returns `schema`, ready to draw from; `lenient` leaves out its wrong parts.

        Raises SchemaError.
        """
        return self._compiled(_canonical(schema), lenient)

    @cachedmethod(attrgetter("_kept"), lock=attrgetter("_lock"))
    def _compiled(self, text: bytes, lenient: bool) -> "CompiledSchema":
        self.load()
        from app.engine.forms.schema.draw import CompiledSchema

        self._slices.spend(COMPILE_STEPS)
        return call_long(CHARACTER * len(text), CompiledSchema, text, lenient)


def _canonical(schema: object) -> bytes:
    """Returns `schema` as JSON, properties in their order, which drawn arguments keep."""
    try:
        text = msgspec.json.encode(schema)
    except (ValueError, TypeError):  # such as half a surrogate pair
        raise SchemaError("the schema holds what JSON cannot") from None
    except RecursionError:
        raise SchemaError("the schema is too deep") from None
    if len(text) > MOST_BYTES:
        raise SchemaError(f"a schema of more than {MOST_BYTES} bytes is too large")
    return text


RawSchema = Mapping[str, object]

MISSED_OF_ARRAYS = frozenset(["uniqueItems", "contains", "minContains", "maxContains"])
COMMON_FORMATS = frozenset(
    ["email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"]
)
"""Formats of texts that both backends support."""
FIRST_FORMATS = COMMON_FORMATS | {
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
}
"""Formats of texts that the first backend supports."""
UNIMPLEMENTED = (
    *(
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
        "unevaluatedProperties",
    ),
    *(
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "if",
        "then",
        "else",
        "not",
    ),
)
"""Keywords that the second backend refuses."""


def untaken(schema: object) -> str | None:
    """Returns the keyword for which vLLM refuses `schema`, which has been compiled; None without
    one.
    """
    schemas = list(_schemas(schema))
    if not any(map(_is_missed, schemas)) or any("patternProperties" in each for each in schemas):
        return None
    for each in schemas:
        if "format" in each and each["format"] not in COMMON_FORMATS:
            return "format"
        if (keyword := next(filter(each.__contains__, UNIMPLEMENTED), None)) is not None:
            return keyword
    return None


def _schemas(schema: object) -> Iterator[RawSchema]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            yield each
            for keyword, value in each.items():
                if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
                    waiting += value.values()
                elif keyword in SCHEMAS or keyword in LISTS_OF_SCHEMAS:
                    waiting.append(value)


def _is_missed(schema: RawSchema) -> bool:
    kind, all_of = schema.get("type"), schema.get("allOf")
    types = kind if isinstance(kind, list) else (kind,)
    return (
        ("integer" in types or "number" in types)
        and "multipleOf" in schema
        or "array" in types
        and not MISSED_OF_ARRAYS.isdisjoint(schema)
        or "string" in types
        and (
            "format" in schema
            and schema["format"] not in FIRST_FORMATS
            or _is_bounded_pattern(schema)
        )
        or "object" in types
        and _misses_names(schema)
        or isinstance(all_of, list)
        and len(all_of) > 1
    )


def _is_bounded_pattern(schema: RawSchema) -> bool:
    return ("pattern" in schema or "format" in schema) and (
        "minLength" in schema or "maxLength" in schema
    )


def _misses_names(schema: RawSchema) -> bool:
    names, patterns = schema.get("propertyNames"), schema.get("patternProperties")
    if "propertyNames" in schema and (
        isinstance(names, dict)
        and _is_bounded_pattern(names)
        or "patternProperties" in schema
        or "properties" in schema
        or schema.get("unevaluatedProperties", True) is not True
    ):
        return True
    return isinstance(patterns, dict) and ("properties" in schema or len(patterns) > 1)
