"""Grammars: rules made of nodes, the lengths of their texts, and the texts that they derive.

A rule is a tree of nodes, which may share subtrees. Nodes are immutable: one grammar serves any
number of texts. Start reading at `Grammar`; `write` divides the wanted length among the nodes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from app.extensions.forms.schema.bounds import SchemaError, WorkBudget
from app.extensions.forms.schema.pattern_writer import split_length
from app.extensions.forms.schema.patterns import Pattern
from config.settings import ToolSettings

LENGTH_LIMIT = 100_000
"""Maximum length of a grammar's shortest text; as the maximum of a node: no limit."""
MAX_VISITS = 200_000
"""Maximum visits of nodes to find the costs of a grammar's rules."""
MAX_DEPTH = 150
"""Maximum levels of nested nodes within a rule."""
MAX_FREE_TEXT_LENGTH = 60
MAX_EXTRA_LENGTH = 8
"""Maximum length of a pattern's text beyond the shortest."""
MAX_STEPS = 60_000
"""Maximum steps of one text; in the last third each node gets its shortest text."""
REPEAT_PROBABILITY = 0.7
"""Probability of one more repetition."""

WriteText: TypeAlias = Callable[[Random, WorkBudget, ToolSettings, int], str]
"""Returns a text of about the given length."""
Speak: TypeAlias = Callable[[int, Random], str]
"""Returns a free text of at most the given length."""


class Text(Struct, frozen=True, eq=False):
    """A literal text."""

    text: str


class Characters(Struct, frozen=True, eq=False):
    """One of the characters of `choices`."""

    choices: str


class Series(Struct, frozen=True, eq=False):
    """All of `items` in their order."""

    items: Sequence["Node"]


class Alternation(Struct, frozen=True, eq=False):
    """One of `options`."""

    options: Sequence["Node"]


class Repetition(Struct, frozen=True, eq=False):
    """`item`, `min_count` to `max_count` times; None is no limit."""

    item: "Node"
    min_count: int = 0
    max_count: int | None = None


class DerivationRule(Struct, frozen=True, eq=False):
    """The rule called `name`."""

    name: str


class WrittenText(Struct, frozen=True, eq=False):
    """Text of `min_length` to about `max_length` characters, returned by `write` for a length."""

    min_length: int
    max_length: int
    write: WriteText


class FreeText(Struct, frozen=True, eq=False):
    """Any text."""


Node: TypeAlias = (
    Text | Characters | WrittenText | FreeText | Series | Alternation | Repetition | DerivationRule
)


class Cost(NamedTuple):
    """Minimum and maximum length of the texts of a node.

    `height` is the nesting of rules in the shortest text. Costs are compared by the minimum, then
    by the height.
    """

    min_length: int
    height: int = 0
    max_length: int = 0


def as_node(pattern: Pattern) -> Node:
    """Returns a node that writes full matches of `pattern`."""
    min_length = pattern.min_length
    max_length = min_length + MAX_EXTRA_LENGTH

    def write_match(rng: Random, budget: WorkBudget, usual: ToolSettings, length: int) -> str:
        limit = min(max(length, min_length), max_length)
        return pattern.write(rng, budget, max_length=limit, whole=True)

    return WrittenText(min_length, max_length, write_match)


class Grammar:
    """Rules by name; the rule `root` derives the whole text.

    Raises:
        SchemaError: `root` derives no text, or a rule is missing.
    """

    __slots__ = ("_node_costs", "_rule_costs", "root", "rules")

    def __init__(self, rules: Mapping[str, Node], root: str) -> None:
        self.rules = rules
        self.root = root
        if root not in rules:
            raise SchemaError(f"the grammar has no rule {root!r}")
        self._rule_costs: dict[str, Cost] = {}
        self._node_costs: dict[int, Cost | None] = {}
        self._solve_costs()
        if root not in self._rule_costs:
            raise SchemaError(f"rule {root!r} in the grammar never terminates")
        if self._rule_costs[root].min_length > LENGTH_LIMIT:
            raise SchemaError("the shortest text that matches the grammar is too long")

    def cost(self, node: Node) -> Cost | None:
        """Returns the cost of a node; None if the node derives no text."""
        key = id(node)
        if key not in self._node_costs:
            self._node_costs[key] = self._compute_cost(node, self._node_costs)
        return self._node_costs[key]

    def _solve_costs(self) -> None:
        """Finds the costs of all rules, in passes forward and backward until no cost changes."""
        names = list(self.rules)
        visits = 0
        has_changed = True
        while has_changed:
            names = names[::-1]
            has_changed = False
            for name in names:
                seen: dict[int, Cost | None] = {}
                cost = self._compute_cost(self.rules[name], seen)
                visits += len(seen) + 1
                if visits > MAX_VISITS:
                    raise SchemaError("the grammar is too complex to process")
                if cost is not None and cost != self._rule_costs.get(name):
                    self._rule_costs[name] = cost
                    has_changed = True

    def _compute_cost(
        self, node: Node, seen: dict[int, Cost | None], depth: int = 0
    ) -> Cost | None:
        children: Sequence[Node]
        match node:
            case Text(text):
                return Cost(len(text), max_length=len(text))
            case Characters():
                return Cost(1, max_length=1)
            case WrittenText(min_length, max_length):
                return Cost(min_length, max_length=max_length)
            case FreeText():
                return Cost(0, max_length=MAX_FREE_TEXT_LENGTH)
            case DerivationRule(name):
                return self._reference_cost(name)
            case Series(children) | Alternation(children):
                pass
            case Repetition(item):
                children = (item,)
        if id(node) not in seen:
            if depth > MAX_DEPTH:
                raise SchemaError("the grammar is nested too deeply")
            costs = [self._compute_cost(child, seen, depth + 1) for child in children]
            seen[id(node)] = _joint_cost(node, costs)
        return seen[id(node)]

    def _reference_cost(self, name: str) -> Cost | None:
        if name not in self.rules:
            raise SchemaError(f"the grammar has no rule {name!r}")
        cost = self._rule_costs.get(name)
        if cost is None:
            return None
        return Cost(cost.min_length, cost.height + 1, max_length=LENGTH_LIMIT)


def _joint_cost(
    node: Series | Alternation | Repetition, costs: Sequence[Cost | None]
) -> Cost | None:
    """Returns the cost of `node`; `costs` has the cost of each child."""
    finite = [cost for cost in costs if cost is not None]
    if isinstance(node, Repetition):
        return _repetition_cost(node, finite)
    if isinstance(node, Alternation):
        if not finite:
            return None
        return min(finite)._replace(max_length=max(cost.max_length for cost in finite))
    if len(finite) < len(costs):
        return None
    min_length = sum(cost.min_length for cost in finite)
    max_length = sum(cost.max_length for cost in finite)
    height = max((cost.height for cost in finite), default=0)
    return Cost(min(min_length, LENGTH_LIMIT + 1), height, min(max_length, LENGTH_LIMIT))


def _repetition_cost(node: Repetition, item_costs: Sequence[Cost]) -> Cost | None:
    if not item_costs or node.max_count == 0:
        if node.min_count:
            return None
        return Cost(0)
    [item_cost] = item_costs
    max_count = node.max_count
    if max_count is None:
        max_count = LENGTH_LIMIT
    height = 0
    if node.min_count:
        height = item_cost.height
    min_length = min(item_cost.min_length * node.min_count, LENGTH_LIMIT + 1)
    max_length = min(item_cost.max_length * max_count, LENGTH_LIMIT)
    return Cost(min_length, height, max_length)


def write(grammar: Grammar, size: int, rng: Random, usual: ToolSettings, speak: Speak) -> str:
    """Returns a text of about `size` characters, or the shortest.

    `speak` writes free texts, `usual` has the ranges of values in JSON.

    Raises:
        SchemaError: The text takes too much work.
    """
    return _GrammarWriter(grammar, rng, usual, speak).write(size)


class _GrammarWriter:
    def __init__(self, grammar: Grammar, rng: Random, usual: ToolSettings, speak: Speak) -> None:
        self._grammar = grammar
        self._rng = rng
        self._usual = usual
        self._speak = speak
        self._budget = WorkBudget(MAX_STEPS)

    def write(self, size: int) -> str:
        parts: list[str] = []
        stack: list[tuple[Node, int]] = [(DerivationRule(self._grammar.root), size)]
        """Nodes to write, each with its length."""
        while stack:
            self._budget.spend()
            node, length = stack.pop()
            if self._budget.left <= MAX_STEPS // 3:
                length = 0
            if isinstance(node, Text | Characters | WrittenText | FreeText):
                parts.append(self._write_leaf(node, length))
            else:
                stack += self._expand(node, length)
        return "".join(parts)

    def _write_leaf(self, node: Text | Characters | WrittenText | FreeText, length: int) -> str:
        match node:
            case Text(text):
                return text
            case Characters(choices):
                return self._rng.choice(choices)
            case WrittenText():
                return node.write(self._rng, self._budget, self._usual, length)
        return self._speak(min(max(length, 0), MAX_FREE_TEXT_LENGTH), self._rng)

    def _expand(
        self, node: DerivationRule | Series | Alternation | Repetition, length: int
    ) -> Iterator[tuple[Node, int]]:
        """Yields the nodes to write for `node` with their lengths, the last one first."""
        match node:
            case DerivationRule(name):
                yield self._grammar.rules[name], length
            case Series(items):
                lengths = self._split(items, length)
                yield from zip(reversed(items), reversed(lengths), strict=True)
            case Alternation(options):
                yield self._choose(options, length), length
            case Repetition(item):
                cost = self._grammar.cost(item)
                if cost is not None and node.max_count != 0:
                    repeated = [item] * self._draw_count(node, cost, length)
                    yield from zip(repeated, self._split(repeated, length), strict=True)

    def _choose(self, options: Sequence[Node], length: int) -> Node:
        costs: list[tuple[Cost, Node]] = []
        for option in options:
            cost = self._grammar.cost(option)
            if cost is not None:
                costs.append((cost, option))
        cheapest = min(cost[:2] for cost, _ in costs)
        if length <= cheapest[0]:
            fitting = [option for cost, option in costs if cost[:2] == cheapest]
        else:
            fitting = [option for cost, option in costs if cost.min_length <= length]
        return self._rng.choice(fitting)

    def _split(self, items: Sequence[Node], length: int) -> list[int]:
        widths: list[tuple[int, int]] = []
        for item in items:
            cost = self._grammar.cost(item)
            if cost is not None:
                widths.append((cost.min_length, cost.max_length))
        return list(split_length(widths, length, self._rng))

    def _draw_count(self, node: Repetition, cost: Cost, length: int) -> int:
        """Draws a number of repetitions within the length.

        Items that may be empty are repeated only if needed.
        """
        if cost.max_length == 0 or length == 0:
            if cost.min_length == 0:
                return min(node.min_count, 1)
            return node.min_count
        count = 0
        max_count = length
        if cost.min_length:
            count = node.min_count
            max_count = length // cost.min_length
        if node.max_count is not None:
            max_count = min(node.max_count, max_count)
        while count < max_count and self._rng.random() < REPEAT_PROBABILITY:
            count += 1
        return count
