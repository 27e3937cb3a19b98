"""Draws random objects that satisfy a merged schema."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, filterfalse

from app.core.base.clock.pause import paced
from app.extensions.forms.schema.bounds import Size, UnsatisfiableError, shuffled
from app.extensions.forms.schema.formats import WORDS
from app.extensions.forms.schema.keywords import JSON, Schema
from app.extensions.forms.schema.merged_schema import MAX_PROPERTIES, MergedSchema
from app.extensions.forms.schema.value_draw import ValueDraw

MAX_INVENTED_NAMES = 3
"""Maximum entries of a map.

A map is an object without declared properties, with a schema for its values.
"""
EXTRA_NAMES = 8
"""Names to try beyond the wanted number."""
SCHEMAS_PER_STEP = 8
"""Schemas of one value per step of work, to find the schemas of a part."""


class ObjectDraw:
    """Draws an object, its declared properties first, `depth` levels down."""

    def __init__(self, draw: ValueDraw, merged: MergedSchema, depth: int) -> None:
        self._draw = draw
        self._merged = merged
        self._depth = depth
        self._limits = merged.object_limits
        self._name_schemas = merged.get("propertyNames", ())
        self._value: dict[str, JSON] = {}

    def draw(self) -> dict[str, JSON]:
        """Returns an object. Raises UnsatisfiableError if none was found."""
        value = self._value
        declared = self._limits.declared
        min_properties = self._limits.min_properties
        if min_properties > MAX_PROPERTIES:
            raise UnsatisfiableError("an object would be too large")
        if self._limits.required:
            self._add([*self._limits.required])
        optional = list(filterfalse(value.__contains__, paced(declared)))
        if optional:
            self._add_optional(optional)
        target = min_properties
        if self._limits.is_map and not declared:
            target = max(min_properties, self._draw_entry_count())
        if len(value) < target:
            self._add_until(target, chain(optional, self._invent_names(target)))
        if len(value) < min_properties:
            raise UnsatisfiableError("could not find enough properties for an object")
        if not declared:
            return value
        return {name: value[name] for name in chain(paced(declared), value) if name in value}

    def _add_optional(self, names: list[str]) -> None:
        """Adds each of `names` with the usual probability."""
        draw = self._draw
        if self._depth:
            percent = draw.usual.object_tool_call_not_required_field_probability
        else:
            percent = draw.usual.tool_call_not_required_param_probability
        probability = percent / 100
        is_small = draw.is_small(self._depth + 1)
        chosen = [name for name in paced(names) if draw.rng.random() < probability and not is_small]
        self._add_until(sys.maxsize, chosen)
        is_brief = draw.is_small(self._depth + 1, Size.BRIEF)
        if not self._value and probability and not is_brief:
            self._add_until(1, shuffled(names, draw.rng))  # not empty by chance

    def _add_until(self, target: int, names: Iterable[str]) -> None:
        """Adds those of `names` that can be added, until there are `target` properties."""
        target = min(target, self._limits.max_properties)
        for name in names:
            with suppress(UnsatisfiableError):
                self._add([name])
            if len(self._value) >= target:
                return  # before the next name is drawn

    def _add(self, names: list[str]) -> None:
        """Draws the properties `names` and the properties that these require.

        Required names are appended to `names`. On UnsatisfiableError the value stays unchanged.
        """
        draw = self._draw
        added: list[str] = []
        try:
            for name in names:  # the loop appends to the list
                if name in self._value:
                    continue
                is_full = len(self._value) >= self._limits.max_properties
                if is_full or self._name_schemas and not draw.accepts(name, *self._name_schemas):
                    raise UnsatisfiableError("could not add a property to an object")
                schemas = self._schemas_for(name)
                self._value[name] = draw.draw_value(schemas, self._depth + 1, name)
                added.append(name)
                for required in self._merged.get("dependentRequired", ()):
                    names += required.get(name, ())
        except UnsatisfiableError:
            for name in added:
                del self._value[name]
            raise

    def _schemas_for(self, name: str) -> list[Schema]:
        budget = self._draw.budget
        if len(self._merged.schemas) >= SCHEMAS_PER_STEP:
            budget.spend(len(self._merged.schemas) // SCHEMAS_PER_STEP)
        schemas: list[Schema] = []
        for schema in self._merged.schemas:
            matching: list[Schema] = []
            if name in schema.get("properties", ()):
                matching.append(schema["properties"][name])
            for pattern, pattern_schema in schema.get("patternProperties", {}).items():
                if pattern.matches(name, budget):
                    matching.append(pattern_schema)
            if not matching and "additionalProperties" in schema:
                matching.append(schema["additionalProperties"])
            schemas += matching
        return schemas or [*self._merged.get("unevaluatedProperties", ())]

    def _draw_entry_count(self) -> int:
        """Draws the number of entries of a map; 0 for a small one."""
        if self._draw.is_small(self._depth):
            return 0
        high = min(MAX_INVENTED_NAMES, self._limits.max_properties)
        return self._draw.rng.randint(min(1, high), high)

    def _invent_names(self, count: int) -> Iterator[str]:
        """Yields names from `patternProperties`, from `propertyNames`, or plain words."""
        alternatives: list[list[Schema]] = []
        for patterns in self._merged.get("patternProperties", ()):
            for pattern in patterns:
                alternatives.append([*self._name_schemas, {"pattern": pattern}])
        if self._name_schemas:
            alternatives.append(self._name_schemas)
        for i in range(count + EXTRA_NAMES):
            for schemas in alternatives:
                with suppress(UnsatisfiableError):
                    string_schemas: list[Schema] = [{"type": ["string"]}, *schemas]
                    yield str(self._draw.draw_value(string_schemas, self._depth + 1))
            if not self._name_schemas:
                round_number, place = divmod(i, len(WORDS))
                word = WORDS[place]
                if round_number:
                    word += str(round_number + 1)
                yield word
