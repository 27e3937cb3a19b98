"""Decides what a schema leaves open: which branch of ``anyOf``, whether ``if`` holds, how ``not`` is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, TypeAlias

from app.clock.pause import Slices
from app.schema.demands import Demands
from app.schema.document import Document, Keywords, Schema
from app.schema.errors import Allowance, Contradiction
from app.schema.keywords import TYPES

Option: TypeAlias = list[Schema]
"""One way to go on: schemas that the value has to satisfy, too."""
MOST_FAILED = 32
"""Branches of a ``oneOf`` that are made to fail on purpose when another one is chosen."""
MEMBERS_A_STEP = 16
"""Members of a list or map that take one step of work to look at."""
OPTIONS_A_STEP = 4
"""Options that take one step of work to make and to put in order."""
ROUNDS = 40
"""Looks at all schemas, forwards and backwards; heights unknown after so many count as endless."""


class Heights:
    """Levels of nesting that a value of a schema has at least; infinite when it could not end.

    It lets recursive schemas come to an end. A lower bound: keywords of several schemas are not held against
    each other.
    """

    def __init__(self, document: Document, slices: Slices) -> None:
        self._document = document
        self._slices = slices
        self._known: dict[int, float] = {id(schema): inf for schema in document.schemas}
        order = document.schemas
        for _ in range(ROUNDS):
            order = order[::-1]  # what is inside of a schema comes behind it
            if not self._look_at(order):
                break

    def of(self, schema: Schema) -> float:
        """The height of `schema`; 0 for one that is not of the document."""
        if isinstance(schema, bool):
            return 0 if schema else inf
        return self._known.get(id(schema), 0)

    def greatest(self, schemas: Iterable[Schema]) -> float:
        """The height that a value of all `schemas` has at least."""
        return max(map(self.of, schemas), default=0)

    def _look_at(self, schemas: Iterable[Keywords]) -> bool:
        """Find the heights of `schemas` from those known; True when one has changed."""
        changed = False
        for schema in schemas:
            self._slices.spend()
            height = self._height(schema)
            if height != self._known[id(schema)]:
                self._known[id(schema)] = height
                changed = True
        return changed

    def _height(self, schema: Keywords) -> float:
        if "const" in schema or "enum" in schema:
            return 0
        height = self.greatest(schema.get("allOf", ()))
        if "$ref" in schema:
            height = max(height, self.of(self._document.definitions[schema["$ref"]]))
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if branches is not None:
                height = max(height, min(map(self.of, branches)))
        return max(height, self._nesting(schema))

    def _nesting(self, schema: Keywords) -> float:
        types = schema.get("type", ["null"])
        if not set(types) <= {"object", "array"}:
            return 0
        ways = []
        if "object" in types:
            properties = schema.get("properties", {})
            ways.append(1 + self.greatest(properties.get(name, True) for name in schema.get("required", ())))
        if "array" in types:
            fewest, prefix = int(schema.get("minItems", 0)), schema.get("prefixItems", [])
            more = [schema.get("items", True)] if fewest > len(prefix) else []
            ways.append(1 + self.greatest(prefix[:fewest] + more))
        return min(ways)


@dataclass(slots=True)
class Decision:
    """`demands` so far, and the choices still `open`, each a list of options."""

    demands: Demands = field(default_factory=Demands)
    open: list[list[Option]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def copy(self) -> Decision:
        """The same decision, to be carried on in another way."""
        return Decision(self.demands.copy(), list(self.open), set(self.seen))


class Choices:
    """Merges schemas of `document` into demands, choosing where there is a choice."""

    def __init__(self, document: Document, heights: Heights, rng: Random, allowance: Allowance) -> None:
        self._document = document
        self._heights = heights
        self._rng = rng
        self._allowance = allowance

    def decide(self, schemas: Iterable[Schema], careful: bool, frugal: bool) -> tuple[Demands, bool]:
        """The demands of all `schemas`, and whether there was anything to choose.

        `careful` makes the other branches of a ``oneOf`` fail on purpose, not by chance; `frugal`
        prefers branches whose values are shallow. Raises Contradiction when no choice works.
        """
        decision = Decision()
        self._take(decision, schemas, careful)
        chosen = bool(decision.open)
        return self._close(decision, careful, frugal), chosen

    def _close(self, decision: Decision, careful: bool, frugal: bool) -> Demands:
        if not decision.open:
            return decision.demands
        options = decision.open.pop()
        self._allowance.spend(len(options) // OPTIONS_A_STEP)
        for option in self._in_order(options, frugal):
            self._allowance.spend(1 + len(decision.seen) // 4)
            trial = decision.copy()
            try:
                self._take(trial, option, careful)
                return self._close(trial, careful, frugal)
            except Contradiction:
                continue
        raise Contradiction

    def _in_order(self, options: list[Option], frugal: bool) -> list[Option]:
        heights = {id(option): self._heights.greatest(option) for option in options}
        ordered = [option for option in options if heights[id(option)] != inf]
        self._rng.shuffle(ordered)
        if frugal:
            ordered.sort(key=lambda option: heights[id(option)])
        return ordered

    def _take(self, decision: Decision, schemas: Iterable[Schema], careful: bool) -> None:
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            self._allowance.spend()
            if isinstance(schema, bool):
                if not schema:
                    raise Contradiction
            elif id(schema) not in decision.seen:
                decision.seen.add(id(schema))
                self._allowance.spend(_breadth(schema, decision.demands))
                decision.demands.add(schema)
                waiting += schema.get("allOf", ())
                if "$ref" in schema:
                    waiting.append(self._document.definitions[schema["$ref"]])
                self._open(decision, schema, careful)

    def _open(self, decision: Decision, schema: Keywords, careful: bool) -> None:
        """Note the choices that `schema` itself leaves."""
        if "anyOf" in schema:
            decision.open.append([[option] for option in schema["anyOf"]])
        if "oneOf" in schema:
            decision.open.append(_one_of(schema["oneOf"], careful))
            decision.demands.doubtful = True
        if "not" in schema:
            decision.open.append(self._failing(schema["not"]))
            decision.demands.doubtful = True
        if "if" in schema:
            holds = [schema["if"], schema.get("then", True)]
            decision.open.append([holds, [{"not": schema["if"]}, schema.get("else", True)]])
            decision.demands.doubtful = True
        for name, dependent in schema.get("dependentSchemas", {}).items():
            present: Option = [{"required": [name]}, dependent]
            decision.open.append([present, [{"properties": {name: False}}]])

    def _failing(self, refused: Schema) -> list[Option]:
        if isinstance(refused, bool):
            return [] if refused else [[True]]
        if not refused:
            return []
        return [[way] for way in ways_to_fail(refused, self._document)] or [[True]]


def _breadth(schema: Keywords, demands: Demands) -> int:
    """Steps that taking in long lists and maps costs."""
    members = sum(len(each) for each in schema.values() if isinstance(each, (list, dict)))
    if "enum" in schema:
        members -= len(schema["enum"])  # one is picked without a look at the others
    steps = members // MEMBERS_A_STEP
    if demands.options is not None and ("enum" in schema or "const" in schema):
        steps += len(demands.options) // MEMBERS_A_STEP
    return steps


def _one_of(branches: list[Schema], careful: bool) -> list[Option]:
    if not careful or len(branches) > MOST_FAILED:
        return [[branch] for branch in branches]
    failing: list[Keywords] = [{"not": branch} for branch in branches]
    return [[branch, *failing[:index], *failing[index + 1 :]] for index, branch in enumerate(branches)]


FAILING: Mapping[str, Callable[[Any], Keywords | None]] = {
    "type": lambda names: {"type": _other_types(names)},
    "minimum": lambda number: {"type": ["number"], "exclusiveMaximum": number},
    "maximum": lambda number: {"type": ["number"], "exclusiveMinimum": number},
    "exclusiveMinimum": lambda number: {"type": ["number"], "maximum": number},
    "exclusiveMaximum": lambda number: {"type": ["number"], "minimum": number},
    "multipleOf": lambda number: {"type": ["number"]},
    "minLength": lambda count: {"type": ["string"], "maxLength": int(count) - 1} if count >= 1 else None,
    "maxLength": lambda count: {"type": ["string"], "minLength": int(count) + 1},
    "minItems": lambda count: {"type": ["array"], "maxItems": int(count) - 1} if count >= 1 else None,
    "maxItems": lambda count: {"type": ["array"], "minItems": int(count) + 1},
    "minProperties": lambda count: (
        {"type": ["object"], "maxProperties": int(count) - 1} if count >= 1 else None
    ),
    "maxProperties": lambda count: {"type": ["object"], "minProperties": int(count) + 1},
    "pattern": lambda pattern: {"type": ["string"]},
    "format": lambda name: {"type": ["string"]},
    "enum": lambda options: {},
    "const": lambda value: {},
    "items": lambda schema: {"type": ["array"], "minItems": 1, "contains": {"not": schema}},
    "propertyNames": lambda schema: {"type": ["object"], "minProperties": 1},
    "additionalProperties": lambda schema: {"type": ["object"], "minProperties": 1},
    "contains": lambda schema: {"type": ["array"], "items": {"not": schema}},
    "uniqueItems": lambda wanted: {"type": ["array"], "minItems": 2} if wanted else None,
    "not": lambda schema: {"allOf": [schema]},
    "anyOf": lambda schemas: {"allOf": [{"not": schema} for schema in schemas]},
    "oneOf": lambda schemas: {"allOf": [{"not": schema} for schema in schemas]},
}
"""One way to fail each keyword; the empty way leaves it to chance and to the judge."""


def ways_to_fail(schema: Keywords, document: Document) -> Iterator[Keywords]:
    """Schemas whose values are likely to fail `schema` of `document`; each fails another of its keywords."""
    for keyword, value in schema.items():
        if keyword in FAILING:
            way = FAILING[keyword](value)
            if way is not None:
                yield way
        elif keyword == "$ref":
            yield {"not": document.definitions[schema["$ref"]]}
        elif keyword == "allOf":
            for each in schema["allOf"]:
                yield {"not": each}
        elif keyword == "required":
            for name in schema["required"]:
                yield {"type": ["object"], "properties": {name: False}}
        elif keyword == "properties":
            for name, each in schema["properties"].items():
                yield {"type": ["object"], "required": [name], "properties": {name: {"not": each}}}
        elif keyword == "prefixItems":
            for index, each in enumerate(schema["prefixItems"]):
                prefix: list[Schema] = [*[True] * index, {"not": each}]
                yield {"type": ["array"], "minItems": index + 1, "prefixItems": prefix}
        elif keyword == "then" and "if" in schema:
            yield {"allOf": [schema["if"], {"not": schema["then"]}]}
        elif keyword == "else" and "if" in schema:
            yield {"allOf": [{"not": schema["if"]}, {"not": schema["else"]}]}
        elif keyword == "dependentRequired":
            for name, others in schema["dependentRequired"].items():
                for other in others:
                    yield {"type": ["object"], "required": [name], "properties": {other: False}}


def _other_types(names: list[str]) -> list[str]:
    excluded = set(names)
    others = [name for name in TYPES if name not in excluded]
    if "number" in excluded:
        others = [name for name in others if name != "integer"]
    return others
