"""Grammars: rules made of nodes, what they cost, and the texts that they derive.

A rule is a tree of nodes, which may share subtrees. Nodes are immutable: one grammar serves any
number of texts. `write` divides the wanted length among the nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from app.engine.forms.schema.bounds import SchemaError, WorkBudget
from app.engine.forms.schema.patterns import Pattern, shares
from config.settings import ToolSettings

LONGEST = 100_000
"""Most characters of a grammar's shortest text; as the `most` of a node: no limit."""
MOST_LOOKS = 200_000
"""Most visits of nodes to find the costs of a grammar's rules."""
DEEPEST = 150
"""Most levels of nested nodes within a rule."""
SPOKEN = 60
"""Most characters of a free text."""
EXTRA = 8
"""Most characters of a pattern's text beyond the shortest."""


class Text(Struct, frozen=True, eq=False):
    text: str


class Characters(Struct, frozen=True, eq=False):
    choices: str


class Series(Struct, frozen=True, eq=False):
    items: "Sequence[Node]"


class Alternation(Struct, frozen=True, eq=False):
    options: "Sequence[Node]"


class Repetition(Struct, frozen=True, eq=False):
    """`item`, `least` to `most` times; None is no limit."""

    item: "Node"
    least: int = 0
    most: int | None = None


class DerivationRule(Struct, frozen=True, eq=False):
    name: str


class WrittenText(Struct, frozen=True, eq=False):
    """Text of `least` to about `most` characters, returned by `write` for a length."""

    least: int
    most: int
    write: Callable[[Random, WorkBudget, ToolSettings, int], str]


class FreeText(Struct, frozen=True, eq=False):
    """Any text."""


Node: TypeAlias = (
    Text | Characters | WrittenText | FreeText | Series | Alternation | Repetition | DerivationRule
)
FREE_TEXT = FreeText()


class Cost(NamedTuple):
    """Fewest and most characters of a text; `height` is the nesting of rules in the shortest text."""

    least: int
    height: int = 0
    most: int = 0


def as_node(pattern: Pattern) -> Node:
    """Returns a node that writes full matches of `pattern`."""
    most = pattern.least + EXTRA

    def write(rng: Random, budget: WorkBudget, usual: ToolSettings, length: int) -> str:
        return pattern.write(rng, budget, 0, min(max(length, pattern.least), most), whole=True)

    return WrittenText(pattern.least, most, write)


class Grammar:
    """Rules; `root` derives the whole text. Raises SchemaError when `root` derives no text."""

    __slots__ = ("_costs", "_known", "root", "rules")

    def __init__(self, rules: Mapping[str, Node], root: str) -> None:
        self.rules = rules
        self.root = root
        if root not in rules:
            raise SchemaError(f"the grammar has no rule {root!r}")
        self._known: dict[str, Cost] = {}
        self._costs: dict[int, Cost | None] = {}
        self._solve()
        if root not in self._known:
            raise SchemaError(f"rule {root!r} of the grammar has no end")
        if self._known[root].least > LONGEST:
            raise SchemaError("the shortest text of the grammar is too long")

    def cost(self, node: Node) -> Cost | None:
        """Returns the cost of a node; None when the node derives no text."""
        key = id(node)
        if key not in self._costs:
            self._costs[key] = self._look_at(node, self._costs)
        return self._costs[key]

    def _solve(self) -> None:
        """Finds the costs of all rules, in passes forwards and backwards until none gets cheaper."""
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

    def _look_at(self, node: Node, seen: dict[int, Cost | None], depth: int = 0) -> Cost | None:
        inner: Sequence[Node]
        match node:
            case Text(text):
                return Cost(len(text), 0, len(text))
            case Characters():
                return Cost(1, 0, 1)
            case WrittenText(least, most):
                return Cost(least, 0, most)
            case FreeText():
                return Cost(0, 0, SPOKEN)
            case DerivationRule(name):
                if name not in self.rules:
                    raise SchemaError(f"the grammar has no rule {name!r}")
                known = self._known.get(name)
                return known and Cost(known.least, known.height + 1, LONGEST)
            case Series(inner) | Alternation(inner):
                pass
            case Repetition(item):
                inner = (item,)
        if id(node) not in seen:
            if depth > DEEPEST:
                raise SchemaError("the grammar is too deep")
            costs = [self._look_at(each, seen, depth + 1) for each in inner]
            seen[id(node)] = _joint_cost(node, costs)
        return seen[id(node)]


def _joint_cost(
    node: Series | Alternation | Repetition, costs: Sequence[Cost | None]
) -> Cost | None:
    found = [cost for cost in costs if cost is not None]
    if isinstance(node, Repetition):
        if not found or node.most == 0:
            return None if node.least else Cost(0)
        [once] = found
        most = once.most * (LONGEST if node.most is None else node.most)
        height = once.height if node.least else 0
        return Cost(min(once.least * node.least, LONGEST + 1), height, min(most, LONGEST))
    if isinstance(node, Alternation):
        cheapest = min(found, default=None)
        return cheapest and cheapest._replace(most=max(cost.most for cost in found))
    if len(found) < len(costs):
        return None
    least, most = sum(cost.least for cost in found), sum(cost.most for cost in found)
    return Cost(
        min(least, LONGEST + 1), max((cost.height for cost in found), default=0), min(most, LONGEST)
    )


Speak = Callable[[int, Random], str]
"""Returns a free text of at most so many characters."""
STEPS = 60_000
"""Most steps of one text; in the last third each node gets its shortest text."""
GO_ON = 0.7
"""Chance of one more repetition."""


def write(grammar: Grammar, size: int, rng: Random, usual: ToolSettings, speak: Speak) -> str:
    """Returns a text of about `size` characters, or the shortest.

    Raises SchemaError after too much work.
    """
    budget, parts = WorkBudget(STEPS), list[str]()
    waiting: list[tuple[Node, int]] = [
        (DerivationRule(grammar.root), size)
    ]  # a stack, with the length of each node
    while waiting:
        budget.spend()
        node, length = waiting.pop()
        length = length if budget.left > STEPS // 3 else 0
        match node:
            case Text(text):
                parts.append(text)
            case Characters(choices):
                parts.append(rng.choice(choices))
            case WrittenText():
                parts.append(node.write(rng, budget, usual, length))
            case FreeText():
                parts.append(speak(min(max(length, 0), SPOKEN), rng))
            case DerivationRule(name):
                waiting.append((grammar.rules[name], length))
            case Series(items):
                waiting += zip(
                    reversed(items), reversed(_shares(grammar, items, length, rng)), strict=True
                )
            case Alternation(options):
                known = [
                    (cost, option)
                    for option in options
                    if (cost := grammar.cost(option)) is not None
                ]
                cheapest = min(cost[:2] for cost, _ in known)
                if length <= cheapest[0]:
                    fitting = [option for cost, option in known if cost[:2] == cheapest]
                else:
                    fitting = [option for cost, option in known if cost.least <= length]
                waiting.append((rng.choice(fitting), length))
            case Repetition(item):
                cost = grammar.cost(item)
                if cost is not None and node.most != 0:
                    items = [item] * _times(node, cost, length, rng)
                    waiting += zip(items, _shares(grammar, items, length, rng), strict=True)
    return "".join(parts)


def _shares(grammar: Grammar, items: Sequence[Node], length: int, rng: Random) -> list[int]:
    costs = [cost for item in items if (cost := grammar.cost(item)) is not None]
    return list(shares([(cost.least, cost.most) for cost in costs], length, rng))


def _times(node: Repetition, once: Cost, length: int, rng: Random) -> int:
    """Draws a number of repetitions within the length; items that may be empty only if needed."""
    if once.most == 0 or length == 0:
        return min(node.least, 1) if once.least == 0 else node.least
    times = node.least if once.least else 0
    highest = length // once.least if once.least else length
    highest = highest if node.most is None else min(node.most, highest)
    while times < highest and rng.random() < GO_ON:
        times += 1
    return times
