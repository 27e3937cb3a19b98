"""Draws objects: which properties they have, declared ones and invented ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from app.schema.demands import Demands
from app.schema.document import Schema
from app.schema.errors import Contradiction
from app.schema.words import WORDS

MOST_PROPERTIES = 1024
"""Properties of the largest object that is drawn."""
MOST_INVENTED = 3
"""Entries of a map: an object whose schema tells of its values, and of no names."""
NAME_TRIES = 8


class Drawing(Protocol):
    """What an object needs of the draw that it is part of."""

    def member(self, schemas: Sequence[Schema], name: str) -> Any:
        """A value of property `name`; raises Contradiction."""

    def name(self, schemas: Sequence[Schema]) -> str:
        """A property's name; raises Contradiction."""

    def names(self, schema: Any, name: str) -> bool:
        """True when ``patternProperties`` of `schema` speaks of `name`."""

    def allows(self, schemas: Sequence[Schema], name: str) -> bool:
        """True when all schemas of ``propertyNames`` accept `name`."""

    def wants(self, schemas: Sequence[Schema]) -> bool:
        """Decide whether a property that may be left out is drawn."""

    def how_many(self, most: int) -> int:
        """Draw the number of entries of a map, 0 to `most`."""


class ObjectDraw:
    """One object on its way. `draw` raises Contradiction when there is none."""

    def __init__(self, demands: Demands, drawing: Drawing) -> None:
        self._demands = demands
        self._drawing = drawing
        self._fewest = demands.counts.get("minProperties", 0)
        self._most = min(demands.counts.get("maxProperties", MOST_PROPERTIES), MOST_PROPERTIES)
        self._name_rules: list[Schema] = list(demands.values("propertyNames"))
        self._value: dict[str, Any] = {}

    def draw(self) -> dict[str, Any]:
        if self._fewest > MOST_PROPERTIES:
            raise Contradiction
        self._add(list(self._demands.required))
        declared = list(dict.fromkeys(name for names in self._demands.values("properties") for name in names))
        left = [name for name in declared if name not in self._value]
        for name in left:
            if self._drawing.wants(self._schemas(name)):
                self._try(name)
        self._fill(left)
        if len(self._value) < self._fewest:
            raise Contradiction
        return {name: self._value[name] for name in (*declared, *self._value) if name in self._value}

    def _fill(self, left: Sequence[str]) -> None:
        """Add properties until there are enough: declared ones first, then invented ones."""
        wanted = max(self._fewest, self._map_entries())
        for name in left:
            if len(self._value) >= wanted:
                return
            self._try(name)
        for name in self._invented(wanted):
            if len(self._value) >= wanted:
                return
            self._try(name)

    def _add(self, names: list[str]) -> None:
        """Draw `names` and what they require. Raises Contradiction, leaving the value as it was."""
        before = dict(self._value)
        try:
            for name in names:
                if name in self._value:
                    continue
                if len(self._value) >= self._most or not self._drawing.allows(self._name_rules, name):
                    raise Contradiction
                self._value[name] = self._drawing.member(self._schemas(name), name)
                for dependent in self._demands.values("dependentRequired"):
                    names += dependent.get(name, ())
        except Contradiction:
            self._value = before
            raise

    def _try(self, name: str) -> bool:
        if name in self._value:
            return False
        try:
            self._add([name])
        except Contradiction:
            return False
        return True

    def _schemas(self, name: str) -> list[Schema]:
        """What all schemas say of the property `name`."""
        said: list[Schema] = []
        for schema in self._demands.plain:
            own: list[Schema] = []
            if name in schema.get("properties", ()):
                own.append(schema["properties"][name])
            for pattern, each in schema.get("patternProperties", {}).items():
                if self._drawing.names(pattern, name):
                    own.append(each)
            if not own and "additionalProperties" in schema:
                own.append(schema["additionalProperties"])
            said += own
        return said or list(self._demands.values("unevaluatedProperties"))

    def _map_entries(self) -> int:
        """How many entries to invent for an object that declares none but tells of their values."""
        demands = self._demands
        if any(schema.get("properties") for schema in demands.plain):
            return 0
        rules = [*demands.values("patternProperties"), *demands.values("additionalProperties")]
        if not rules or False in rules:
            return 0
        return self._drawing.how_many(min(MOST_INVENTED, self._most))

    def _invented(self, wanted: int) -> Iterator[str]:
        """Names of our own: by the patterns of the schema, by its rules for names, or plain words."""
        rules: list[list[Schema]] = [
            [*self._name_rules, {"pattern": pattern}]
            for patterns in self._demands.values("patternProperties")
            for pattern in patterns
        ]
        if self._name_rules:
            rules.append(self._name_rules)
        for number in range(wanted + NAME_TRIES if wanted else 0):
            for schemas in rules:
                try:
                    yield self._drawing.name(schemas)
                except Contradiction:
                    continue
            if not self._name_rules:
                word = WORDS[number % len(WORDS)]
                yield word if number < len(WORDS) else f"{word}{number // len(WORDS) + 1}"
