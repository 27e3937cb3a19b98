"""Values that satisfy a JSON Schema, and texts that match a regular expression.

`Schemas` is a cache of compiled schemas. The compiler is imported at its first use.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from cachetools import LRUCache
from gevent import monkey

from app.core.base.clock.pause import QUICK_BYTES, Slices, can_wait
from app.core.base.fair_slots import NativeThreads
from app.core.base.late_imports import import_modules
from app.core.engine.constraints import AllowedTexts, SchemaVerdict
from app.core.engine.constraints import SchemaError as SchemaError

if TYPE_CHECKING:
    from app.extensions.forms.schema.draw import CompiledSchema
    from app.extensions.forms.schema.patterns import Pattern

COMPILER_MODULES = (
    "attr",
    "attrs",
    "rpds",
    "referencing",
    "referencing.jsonschema",
    "jsonschema_specifications",
    "fractions",
    "idna",
    "jsonschema",
    "regex",
    "app.extensions.forms.schema.pattern_dialect",
    "app.extensions.forms.schema.pattern_writer",
    "app.extensions.forms.schema.patterns",
    "app.extensions.forms.schema.keywords",
    "app.extensions.forms.schema.document",
    "app.extensions.forms.schema.text_draw",
    "app.extensions.forms.schema.validation",
    "app.extensions.forms.schema.backends.patterns",
    "app.extensions.forms.schema.backends.shapes",
    "app.extensions.forms.schema.backends.external",
    "app.extensions.forms.schema.backends.llguidance",
    "app.extensions.forms.schema.backends.outlines",
    "app.extensions.forms.schema.backends.xgrammar",
    "app.extensions.forms.schema.backends.verdicts",
    "app.extensions.forms.schema.reader",
    "app.extensions.forms.schema.array_draw",
    "app.extensions.forms.schema.object_draw",
    "app.extensions.forms.schema.plans",
    "app.extensions.forms.schema.draw",
)
"""Modules of the compiler, in the order of dependencies.

They are imported at first use: that takes 60 ms, a sixth of a server's start, and at most 10 ms
without a pause.
"""
MAX_SCHEMA_BYTES = 2_000_000
"""Maximum size of a schema as JSON."""
WORK_PER_CHARACTER = 8
"""Work of compiling a character, in bytes as `call_long` counts them."""
REGEX_WORK = 5
"""Work of compiling a character of a regular expression, in characters of a schema."""
MAX_UNCOLLECTED = 10_000
"""Most characters that are compiled between two collections of garbage."""
MAX_COLLECTED = 100_000
"""Most new objects for which garbage is collected, in about 20 ms."""
TEXT_STEPS = 20_000
"""Maximum steps of drawing a text that matches a pattern."""
COMPILE_STEPS = 30
"""Steps of 10 us to compile a short schema; many compilations pause in between."""
CACHE_LIMIT_BYTES = 8 << 20
MAX_RECENT = 64
"""Maximum schemas that are found by their `id`."""
MAX_RECENT_BYTES = 4_000
"""Length of the longest such schema, as JSON."""

Compiled = TypeVar("Compiled")


class RecentSchema(NamedTuple):
    """A schema, whose `id` no other object has while it is here, and its compiled form."""

    schema: object
    compiled: "CompiledSchema"


class Schemas:
    """LRU cache of compiled schemas within `limit_bytes` of memory."""

    def __init__(self, limit_bytes: int = CACHE_LIMIT_BYTES) -> None:
        self.full_limit_bytes = limit_bytes
        self._cache: LRUCache[tuple[bytes, bool], CompiledSchema]
        self._cache = LRUCache(limit_bytes, getsizeof=attrgetter("size_bytes"))
        # A lock of threads: none waits inside, and a lock of gevent takes several microseconds.
        self._lock = monkey.get_original("threading", "Lock")()
        self._thread = NativeThreads(1)
        self._latest: tuple[str, Pattern | None] = ("", None)
        """The regular expression that was compiled last."""
        self._uncollected = 0
        """Characters that were compiled since the garbage was collected."""
        self._slices = Slices()
        self.is_loaded = False
        self._recent: dict[tuple[int, bool], RecentSchema] = {}
        """Schemas by their `id`: those of remembered tools are the same objects in each request."""

    @property
    def limit_bytes(self) -> int:
        """Memory limit in force."""
        return int(self._cache.maxsize)

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        if limit_bytes == self.limit_bytes:
            return
        with self._lock:
            items = list(self._cache.items())
            self._cache = LRUCache(limit_bytes, getsizeof=attrgetter("size_bytes"))
            self._recent.clear()
            for key, schema in items:
                with suppress(ValueError):  # larger than the new limit
                    self._cache[key] = schema

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the cached schemas."""
        return int(self._cache.currsize)

    def shrink(self) -> None:
        """Removes all schemas."""
        with self._lock:
            self._cache.clear()
            self._recent.clear()
            self._latest = ("", None)

    def load(self) -> None:
        """Imports the compiler, if this has not happened yet."""
        if not self.is_loaded:
            import_modules(*COMPILER_MODULES)
            self.is_loaded = True

    def matching_text(self, pattern: str, rng: Random) -> str:
        """Returns a text that `pattern` matches as a whole. Raises SchemaError."""
        compiled = self._compile_regex(pattern)
        from app.extensions.forms.schema.bounds import WorkBudget

        return compiled.write(rng, WorkBudget(TEXT_STEPS), whole=True)

    def next_characters(self, pattern: str, characters: str) -> AllowedTexts:
        """Returns a function that finds which of `characters` may follow in a match of `pattern`.

        Raises:
            SchemaError: The pattern is invalid.
        """
        return partial(self._compile_regex(pattern).next_texts, characters=characters)

    def compile(self, schema: object, lenient: bool = False) -> "CompiledSchema":
        """Returns `schema`, ready to draw from.

        `lenient` leaves out invalid parts of the schema. The caller never changes `schema` later:
        it may be found by its `id`.

        Raises:
            SchemaError: The schema is invalid or too large.
            SlotsBusyError, ClientLeftError: as `call`.
        """
        recent = self._recent.get((id(schema), lenient))
        if recent is not None:
            return recent.compiled
        text = _json_of(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise SchemaError(f"the schema exceeds {MAX_SCHEMA_BYTES} bytes")
        key = (text, lenient)
        with self._lock:
            compiled = self._cache.get(key)
        if compiled is None:
            compiled = self._compile_text(*key)
            if compiled.size_bytes <= self.limit_bytes:
                with self._lock:
                    self._cache[key] = compiled
            self._recent.clear()  # others may have left the cache
        if len(text) <= MAX_RECENT_BYTES and compiled.size_bytes <= self.limit_bytes:
            if len(self._recent) >= MAX_RECENT:
                self._recent.clear()
            self._recent[id(schema), lenient] = RecentSchema(schema, compiled)
        return compiled

    def known(self, schema: object, lenient: bool) -> "CompiledSchema | None":
        """Returns what `compile` returned for an equal schema, if it is in the cache.

        Raises:
            SchemaError: The schema is no JSON.
        """
        key = (_json_of(schema), lenient)
        with self._lock:
            return self._cache.get(key)

    def verdict_on(self, schema: object) -> SchemaVerdict:
        """Returns vLLM's answer to `schema`.

        Raises:
            SchemaError: The schema is too large.
        """
        return self.compile(schema, lenient=True).verdict

    def _compile_text(self, text: bytes, lenient: bool) -> "CompiledSchema":
        self.load()
        from app.extensions.forms.schema.draw import CompiledSchema

        self._slices.spend(COMPILE_STEPS)
        return self.call(len(text), partial(CompiledSchema, text, lenient))

    def _compile_regex(self, source: str) -> "Pattern":
        """Returns a compiled pattern; all choices of a request ask for the same one, twice."""
        latest_source, latest = self._latest
        if latest is not None and latest_source == source:
            return latest
        self.load()
        from app.extensions.forms.schema.request_patterns import compile_regex

        compiled = self.call(REGEX_WORK * len(source), partial(compile_regex, source))
        self._latest = (source, compiled)
        return compiled

    def call(self, characters: int, function: Callable[[], Compiled]) -> Compiled:
        """Calls a function that compiles a text; a long text waits for the thread.

        Then it collects garbage, while no other text is compiled: compiled patterns leave cycles,
        two objects a character, and a worker would collect millions of objects at once.

        Raises:
            SlotsBusyError, ClientLeftError: as `FairSlots`.
        """
        if WORK_PER_CHARACTER * characters <= QUICK_BYTES:
            compiled = function()
        else:
            compiled = self._thread.call(function)
        self._uncollected += characters
        if self._uncollected > MAX_UNCOLLECTED:
            self._uncollected = 0
            if can_wait() and gc.get_count()[0] < MAX_COLLECTED:
                gc.collect(0)
        return compiled


def _json_of(schema: object) -> bytes:
    """Returns a schema as JSON; drawn arguments keep the order of its properties."""
    try:
        return msgspec.json.encode(schema)
    except (ValueError, TypeError):  # such as half a surrogate pair
        raise SchemaError("the schema cannot be converted to JSON") from None
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
