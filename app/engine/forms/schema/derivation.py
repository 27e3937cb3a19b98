"""Nodes of regular expressions and grammars, their costs, and the writer of their texts.

A grammar is a set of rules, each a tree of nodes, which may share subtrees. A regular expression has one
rule. Nodes are immutable, so one grammar serves any number of texts. The writer divides the wanted length
among the nodes. Look-around and back references of another length may fail: `patterns.py` checks the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeAlias

from app.engine.forms.schema.errors import SchemaError, WorkBudget
from app.engine.forms.schema.ranges import Ranges

LONGEST = 100_000
"""Most characters of a grammar's shortest text; as the `most` of a node: no limit."""
MOST_LOOKS = 200_000
"""Most visits of nodes to find the costs of a grammar's rules."""
DEEPEST = 150
"""Most levels of nested nodes within a rule."""
SPOKEN = 60
"""Most characters of a free text."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Characters:
    choices: str


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    items: Sequence[Node]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    options: Sequence[Node]


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """`item`, `least` to `most` times; None is no limit."""

    item: Node
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Text of `least` to about `most` characters, returned by `write` for a length."""

    least: int
    most: int
    write: Callable[[Random, WorkBudget, Ranges, int], str]


@dataclass(frozen=True, slots=True, eq=False)
class FreeText:
    """Any text."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """`item`, whose text is remembered under `number`."""

    number: int
    item: Node


@dataclass(frozen=True, slots=True, eq=False)
class BackReference:
    """The text of group `number` again; `item` is the item of that group."""

    number: int
    item: Node


@dataclass(frozen=True, slots=True, eq=False)
class IfWritten:
    """`then` if group `number` has been written, else `otherwise`."""

    number: int
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True, eq=False)
class Assertion:
    """A look-around: usually other nodes write a fitting text by chance; some attempts write out `item`."""

    item: Node


Leaf: TypeAlias = Text | Characters | Written | FreeText | Assertion
Node: TypeAlias = Leaf | Series | Alternation | Repetition | Rule | Group | BackReference | IfWritten
FREE_TEXT = FreeText()


class Cost(NamedTuple):
    """Fewest and most characters of a text; `height` is the nesting of rules in the shortest text."""

    least: int
    height: int = 0
    most: int = 0


class Grammar:
    """Rules; `root` derives the whole text. Raises SchemaError when `root` derives no text."""

    __slots__ = ("_costs", "_known", "length", "root", "rules")

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
        if cost.least > LONGEST:
            raise SchemaError("the shortest text of the grammar is too long")
        self.length = cost.least, cost.most
        """Characters of the shortest and of the longest text."""

    def cost(self, node: Node) -> Cost | None:
        """Returns the cost of a node; None when the node derives no text."""
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
        """Returns the cost of a node, from the rule costs known so far."""
        match node:
            case Text(text):
                return Cost(len(text), 0, len(text))
            case Characters():
                return Cost(1, 0, 1)
            case Written(least, most):
                return Cost(least, 0, most)
            case FreeText():
                return Cost(0, 0, SPOKEN)
            case Assertion():
                return Cost(0)
            case Rule(name):
                known = self._known.get(name)
                return known and Cost(known.least, known.height + 1, LONGEST)
        if id(node) not in seen:
            if depth > DEEPEST:
                raise SchemaError("the grammar is too deep")
            inner = [self._look_at(each, seen, depth + 1) for each in _inner(node)]
            seen[id(node)] = _joint_cost(node, inner)
        return seen[id(node)]


def _joint_cost(node: Node, costs: Sequence[Cost | None]) -> Cost | None:
    found = [cost for cost in costs if cost is not None]
    if isinstance(node, Repetition):
        once = found[0] if found else None
        if once is None or node.most == 0:
            return None if node.least else Cost(0)
        least, most = once.least * node.least, once.most * (LONGEST if node.most is None else node.most)
        return Cost(min(least, LONGEST + 1), once.height if node.least else 0, min(most, LONGEST))
    if isinstance(node, Alternation | IfWritten):
        cheapest = min(found, default=None)
        return cheapest and cheapest._replace(most=max(cost.most for cost in found))
    if len(found) < len(costs):
        return None
    least, most = sum(cost.least for cost in found), sum(cost.most for cost in found)
    return Cost(min(least, LONGEST + 1), max((cost.height for cost in found), default=0), min(most, LONGEST))


def _inner(node: Node) -> Sequence[Node]:
    match node:
        case Series(items):
            return items
        case Alternation(options):
            return options
        case Repetition(item) | Group(_, item) | BackReference(_, item):
            return (item,)
        case IfWritten(_, then, otherwise):
            return then, otherwise
    return ()


Speak = Callable[[int, Random], str]
"""Returns a free text of at most so many characters."""
STEPS = 60_000
"""Most steps of one text of a grammar; the last third is reserved to end the text."""
USUAL_RANGES = Ranges()
GO_ON = 0.7
"""Chance of one more repetition."""


def write(grammar: Grammar, size: int, rng: Random, ranges: Ranges, speak: Speak) -> str:
    """Returns a text of about `size` characters, or the shortest. Raises SchemaError after too much work."""
    return Writer(grammar, rng, WorkBudget(STEPS), STEPS // 3, ranges, speak).text(size)


@dataclass(frozen=True, slots=True, eq=False)
class _EndOfGroup:
    number: int
    start: int
    """Index of the group's first part."""


class Writer:
    """Writes one text that `grammar` derives, of the wanted length; with a `reserve` of at most this length.

    Once only `reserve` steps are left, each node gets its shortest text. `look_around` writes assertions.
    """

    def __init__(
        self,
        grammar: Grammar,
        rng: Random,
        budget: WorkBudget,
        reserve: int = 0,
        ranges: Ranges = USUAL_RANGES,
        speak: Speak = lambda most, rng: "",
        look_around: bool = False,
    ) -> None:
        self._grammar, self._rng, self._budget, self._reserve = grammar, rng, budget, reserve
        self._is_exact = not reserve
        self._ranges, self._speak, self._look_around = ranges, speak, look_around
        self._parts: list[str] = []
        self._groups: dict[int, str] = {}
        self._waiting: list[tuple[Node | _EndOfGroup, int]] = []
        """Stack of nodes with their lengths."""

    def text(self, length: int) -> str:
        self._push(Rule(self._grammar.root), length)
        while self._waiting:
            self._budget.spend()
            node, length = self._waiting.pop()
            if isinstance(node, _EndOfGroup):
                self._groups[node.number] = "".join(self._parts[node.start :])
            else:
                self._take(node, length if self._budget.left > self._reserve else 0)
        return "".join(self._parts)

    def _push(self, node: Node, length: int) -> None:
        self._waiting.append((node, length))

    def _take(self, node: Node, length: int) -> None:
        match node:
            case Text(text):
                self._parts.append(text)
            case Characters(choices):
                self._parts.append(self._rng.choice(choices))
            case Series(items):
                shares = self._shares(items, length)
                self._waiting += zip(reversed(items), reversed(shares), strict=True)
            case Rule(name):
                self._push(self._grammar.rules[name], length)
            case Alternation(options):
                self._push(self._option(options, length), length)
            case Repetition(item):
                self._repeat(node, length)
            case Group(number, item):
                self._waiting.append((_EndOfGroup(number, len(self._parts)), 0))
                self._push(item, length)
            case IfWritten(number, then, otherwise):
                self._push(then if number in self._groups else otherwise, length)
            case Assertion(item):
                if self._look_around:
                    self._push(item, 0)
            case _:
                self._parts.append(self._leaf(node, length))

    def _leaf(self, node: Node, length: int) -> str:
        match node:
            case BackReference(number):
                text = self._groups.get(number, "")
                self._budget.spend(len(text) // 64)
                return text
            case Written():
                return node.write(self._rng, self._budget, self._ranges, length)
        return self._speak(min(max(length, 0), SPOKEN), self._rng)

    def _cost(self, node: Node) -> Cost:
        cost = self._grammar.cost(node)
        if cost is None:
            raise SchemaError("nothing can be derived from a part of the grammar")
        return cost

    def _shares(self, items: Sequence[Node], length: int) -> list[int]:
        """Divides a length among consecutive nodes."""
        costs, shares = [self._cost(item) for item in items], []
        room = sum(cost.most - cost.least for cost in costs)
        spare = min(length - sum(cost.least for cost in costs), room)
        for cost in costs:
            own = cost.most - cost.least
            room -= own
            extra = self._rng.randint(max(0, spare - room), min(own, spare)) if spare > 0 and own else 0
            shares.append(cost.least + extra)
            spare -= extra
        return shares

    def _option(self, options: Sequence[Node], length: int) -> Node:
        """Returns an option that can have this length, else any that fits, else the shortest one."""
        known = [(cost, option) for option in options if (cost := self._grammar.cost(option)) is not None]
        cheapest = min(cost[:2] for cost, _ in known)
        if length <= cheapest[0]:
            fitting = [option for cost, option in known if cost[:2] == cheapest]
        else:
            short = [(cost, option) for cost, option in known if cost.least <= length]
            exact = [option for cost, option in short if self._is_exact and length <= cost.most]
            fitting = exact or [option for _, option in short]
        return self._rng.choice(fitting)

    def _repeat(self, node: Repetition, length: int) -> None:
        cost = self._grammar.cost(node.item)
        if cost is None or node.most == 0:
            return
        whole = self._cost(node)
        length = min(max(length, whole.least), whole.most)
        if isinstance(node.item, Characters) and self._is_exact:
            self._budget.spend(length // 16)
            self._parts.extend(self._rng.choices(node.item.choices, k=length))
            return
        shares, times = [], self._times(node, cost, length)
        for left in range(times - 1, -1, -1):
            lowest = max(cost.least, length - left * cost.most)
            own = self._rng.randint(lowest, max(lowest, min(cost.most, length - left * cost.least)))
            shares.append(own)
            length -= own
        self._waiting += [(node.item, share) for share in reversed(shares)]

    def _times(self, node: Repetition, once: Cost, length: int) -> int:
        """Draws a number of repetitions that can reach `length`; items that may be empty only if needed."""
        if once.most == 0 or length == 0:
            return min(node.least, 1)
        lowest = node.least if once.least else 0
        highest = length // once.least if once.least else length
        highest = max(lowest, highest if node.most is None else min(node.most, highest))
        if not self._is_exact:
            while lowest < highest and self._rng.random() < GO_ON:
                lowest += 1
            return lowest
        lowest = min(max(lowest, -(-length // once.most)), highest)
        return self._rng.randint(lowest, highest)
