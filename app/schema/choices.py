"""Decides what a schema leaves open: which branch of ``anyOf``, whether ``if`` holds, how ``not`` is met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from app.schema.demands import Demands
from app.schema.document import Document, Schema
from app.schema.errors import Allowance, Contradiction
from app.schema.heights import Heights
from app.schema.negation import ways_to_fail

Option = list[Schema]
MOST_FAILED = 32
"""Branches of a ``oneOf`` that are made to fail on purpose when another one is chosen."""


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
        options = self._in_order(decision.open.pop(), frugal)
        for option in options:
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
                decision.demands.add(schema)
                waiting += schema.get("allOf", ())
                if "$ref" in schema:
                    waiting.append(self._document.target(schema["$ref"]))
                self._open(decision, schema, careful)

    def _open(self, decision: Decision, schema: Mapping[str, Any], careful: bool) -> None:
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
        return [[way] for way in ways_to_fail(refused, self._document.target)] or [[True]]


def _one_of(branches: list[Schema], careful: bool) -> list[Option]:
    if not careful or len(branches) > MOST_FAILED:
        return [[branch] for branch in branches]
    return [[branch, *({"not": other} for other in branches if other is not branch)] for branch in branches]
