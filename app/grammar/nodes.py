"""What a grammar consists of, and what the shortest text of each part costs.

A grammar is rules, each a tree of nodes, which may share parts with others. Nothing in it is ever changed, so
that one grammar serves any number of texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from app.schema.errors import SchemaError

if TYPE_CHECKING:
    from app.schema.compiled import CompiledSchema
    from app.schema.patterns import Pattern

LONGEST = 100_000
"""Characters of the longest text that a grammar may need at least."""
MOST_LOOKS = 200_000
"""Nodes that are looked at to find what a grammar's rules cost; it is given up after so many."""
DEEPEST = 150
"""Nodes in one another, without those of other rules."""
SHORTEST_JSON = 2


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    ranges: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    pattern: Pattern


@dataclass(frozen=True, slots=True, eq=False)
class Json:
    schema: CompiledSchema


@dataclass(frozen=True, slots=True, eq=False)
class FreeText:
    """Any text."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    items: Sequence[Node]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    options: Sequence[Node]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """`item`, `least` to `most` times; None is without end."""

    item: Node
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    name: str


Node: TypeAlias = Text | OneOf | Match | Json | FreeText | Series | Alternation | Repetition | Rule
FREE_TEXT = FreeText()


class Cost(NamedTuple):
    """The shortest text of a node, and how many rules are in one another to get there."""

    characters: int
    height: int = 0


class Grammar:
    """Rules, of which `root` derives the whole text. SchemaError when it derives none."""

    def __init__(self, rules: Mapping[str, Node], root: str) -> None:
        self.rules = rules
        self.root = root
        if root not in rules:
            raise SchemaError(f"the grammar has no rule {root!r}")
        self._known: dict[str, Cost] = {}
        self._costs: dict[int, Cost | None] = {}
        self._solve()
        cost = self._known.get(root)
        if cost is None:
            raise SchemaError(f"rule {root!r} of the grammar has no end")
        if cost.characters > LONGEST:
            raise SchemaError("the shortest text of the grammar is too long")

    def cost(self, node: Node) -> Cost | None:
        """The cost of a node; None when nothing can be derived from it."""
        key = id(node)
        if key not in self._costs:
            self._costs[key] = self._look_at(node, self._costs)
        return self._costs[key]

    def _solve(self) -> None:
        """Finds the costs of all rules, in passes forwards and backwards until none gets cheaper."""
        for name, node in self.rules.items():
            for used in self._rules_in(node):
                if used not in self.rules:
                    raise SchemaError(f"the grammar has no rule {used!r}, which {name!r} uses")
        names, looks, changed = list(self.rules), 0, True
        while changed:
            names, changed = names[::-1], False
            for name in names:
                seen: dict[int, Cost | None] = {}
                cost = self._look_at(self.rules[name], seen)
                looks += len(seen) + 1
                if looks > MOST_LOOKS:
                    raise SchemaError("the grammar takes too much work")
                if cost is not None and cost != self._known.get(name):
                    self._known[name] = cost
                    changed = True

    def _rules_in(self, node: Node) -> Iterator[str]:
        waiting, seen = [node], {id(node)}
        while waiting:
            one = waiting.pop()
            if isinstance(one, Rule):
                yield one.name
            for inner in _inner(one):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)

    def _look_at(self, node: Node, seen: dict[int, Cost | None], depth: int = 0) -> Cost | None:
        """The cost of a node by the costs of rules that are known so far."""
        if id(node) in seen:
            return seen[id(node)]
        if depth > DEEPEST:
            raise SchemaError("the grammar is too deep")
        match node:
            case Text(text):
                return Cost(len(text))
            case OneOf():
                return Cost(1)
            case Match(pattern):
                return Cost(pattern.least)
            case Json():
                return Cost(SHORTEST_JSON)
            case FreeText():
                return Cost(0)
            case Rule(name):
                known = self._known.get(name)
                return None if known is None else Cost(known.characters, known.height + 1)
        cost = seen[id(node)] = self._together(node, seen, depth + 1)
        return cost

    def _together(
        self, node: Series | Alternation | Repetition, seen: dict[int, Cost | None], depth: int
    ) -> Cost | None:
        costs = [self._look_at(inner, seen, depth) for inner in _inner(node)]
        if isinstance(node, Repetition):
            once = costs[0] if node.least else Cost(0)
            return once and Cost(min(once.characters * node.least, LONGEST + 1), once.height)
        found = [cost for cost in costs if cost is not None]
        if isinstance(node, Alternation):
            return min(found, default=None)
        if len(found) < len(costs):
            return None
        characters = min(sum(cost.characters for cost in found), LONGEST + 1)
        return Cost(characters, max((cost.height for cost in found), default=0))


def _inner(node: Node) -> Sequence[Node]:
    match node:
        case Series(items):
            return items
        case Alternation(options):
            return options
        case Repetition(item):
            return (item,)
    return ()
