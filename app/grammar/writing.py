"""Writes a text that a grammar derives: by chance, as long as there is room, and then by the shortest way."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from app.grammar.nodes import (
    SHORTEST_JSON,
    Alternation,
    Cost,
    FreeText,
    Grammar,
    Json,
    Match,
    Node,
    OneOf,
    Repetition,
    Rule,
    Series,
    Text,
)
from app.schema import Ranges, Size
from app.schema.errors import SchemaError, WorkBudget

Speak = Callable[[int, Random], str]
"""A text of at most so many characters, about anything."""
STEPS = 60_000
"""Steps that one text may take; when a third is left, it is brought to its end."""
GO_ON = 0.7
"""Chance of one more, of what may come any number of times."""
EXTRA = 8
"""Characters that a regular expression gets beyond its shortest text."""
SPOKEN = 60
"""Most characters of a text about anything."""
ROOMY = 60
"""Characters of room from which on JSON need not be brief."""
SURROGATES = range(0xD800, 0xE000)


def write(grammar: Grammar, size: int, rng: Random, ranges: Ranges, speak: Speak) -> str:
    """A text of about `size` characters, or the shortest there is. SchemaError when it takes too much."""
    return _Writer(grammar, size, rng, ranges, speak, WorkBudget(STEPS)).text()


class _Writer:
    def __init__(
        self, grammar: Grammar, size: int, rng: Random, ranges: Ranges, speak: Speak, budget: WorkBudget
    ) -> None:
        self._grammar = grammar
        self._rng, self._ranges, self._speak = rng, ranges, speak
        self._budget = budget
        self._parts: list[str] = []
        self._waiting: list[Node] = [Rule(grammar.root)]
        self._room = size - self._cost(self._waiting[0]).characters
        """Characters that may be written beyond the shortest way to the end."""

    def text(self) -> str:
        while self._waiting:
            self._budget.spend()
            if self._budget.left < STEPS // 3:
                self._room = 0
            self._take(self._waiting.pop())
        return "".join(self._parts)

    def _take(self, node: Node) -> None:
        match node:
            case Text(text):
                self._parts.append(text)
            case OneOf():
                self._parts.append(self._character(node))
            case Rule(name):
                self._waiting.append(self._grammar.rules[name])
            case Series(items):
                self._waiting.extend(reversed(items))
            case Alternation():
                self._waiting.append(self._option(node))
            case Repetition():
                self._waiting.extend([node.item] * self._times(node))
            case Match(pattern):
                most = pattern.least + min(max(self._room, 0), EXTRA)
                self._write(pattern.write(self._rng, self._budget, 0, most, whole=True), pattern.least)
            case Json():
                self._write(self._json(node), SHORTEST_JSON)
            case FreeText():
                self._write(self._speak(min(max(self._room, 0), SPOKEN), self._rng), 0)

    def _write(self, text: str, least: int) -> None:
        self._parts.append(text)
        self._room -= len(text) - least

    def _cost(self, node: Node) -> Cost:
        cost = self._grammar.cost(node)
        if cost is None:
            raise SchemaError("nothing can be derived from a part of the grammar")
        return cost

    def _option(self, node: Alternation) -> Node:
        """Any option that there is room for; without room the one that ends soonest."""
        known = [
            (cost, option) for option in node.options if (cost := self._grammar.cost(option)) is not None
        ]
        least = min(cost for cost, _ in known)
        most = least.characters + self._room
        fitting = [(cost, option) for cost, option in known if cost.characters <= most]
        if self._room <= 0 or not fitting:
            fitting = [(cost, option) for cost, option in known if cost == least]
        cost, option = self._rng.choice(fitting)
        self._room -= cost.characters - least.characters
        return option

    def _times(self, node: Repetition) -> int:
        times = node.least
        once = self._grammar.cost(node.item)
        if once is None:
            return times
        while (node.most is None or times < node.most) and 0 < self._room >= once.characters:
            if self._rng.random() > GO_ON:
                break
            times += 1
            self._room -= max(once.characters, 1)
        return times

    def _character(self, node: OneOf) -> str:
        first, last = self._rng.choice(node.ranges)
        point = self._rng.randint(first, last)
        return chr(first if point in SURROGATES else point)

    def _json(self, node: Json) -> str:
        size = Size.BRIEF if self._room < ROOMY else Size.USUAL
        value = node.schema.sample(self._rng, self._ranges, size)
        return json.dumps(value, ensure_ascii=False)
