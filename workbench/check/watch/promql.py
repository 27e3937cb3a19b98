"""Reads PromQL: the selectors of an expression, and the functions around them.

promql-parser, an optional package, parses, because the grammar has many special cases. It takes
time with the square of the nesting, and a deep nesting overflows its stack, which ends the process.
So long and deep expressions are refused before it sees them. Start reading at `read_promql`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from workbench.check.watch.ranges import ANY, Comparison, Range, comparisons_in, range_of

MAX_LENGTH = 16 << 10
"""Characters of an expression."""
MAX_OPERATORS = 200
"""Most operators and parentheses of an expression; 500 take 0.2 s, and 5,000 end the process."""
VARIABLE = re.compile(r"\$\{[^{}]*\}|\$\w+|\[\[\w+(?::\w+)?\]\]")
"""A variable of Grafana: $name, ${name}, ${name:format}, or [[name]]."""
MAX_VARIABLES = 100
"""Most variables of an expression."""
CONTEXT = 300
"""Characters in front of a variable that decide what it stands for."""
MARKER = "GRAFANA_VARIABLE"
"""Stands for a variable in the name of a metric or a label."""
RATES = frozenset(("rate", "irate", "increase"))
BUCKET_BOUND = "le"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|\'(?:[^\'\\]|\\.)*(?:\'|$)|`[^`]*(?:`|$)', re.DOTALL)
"""A string; one without its end goes on to the end of the text."""
_OPERATOR = re.compile(r"[-+*/%^(<>=!~]|\b(?:and|or|unless|atan2|by|without|offset)\b", re.I)
_WORDS = re.compile(r"[\w.:/+-]+")
_NAME = re.compile(r"(?<![\w:.$])(?:vllm:|ray_vllm[:_])[\w:]+(?![\w:$.*]|\[\[)")
"""The name of a metric, without a variable or a pattern behind it."""
_NAME_END = re.compile(r"[\w:]")
_GROUPINGS = ("by", "without", "on", "ignoring", "group_left", "group_right")
_KEEPS_LABELS = frozenset(("topk", "bottomk", "limitk", "limit_ratio"))
_NEW_LABELS = frozenset(("label_replace", "label_join"))
Operator = Literal["=", "!=", "=~", "!~"]


class PromqlError(ValueError):
    """An expression that cannot be read; the message is one line."""


class Matcher(NamedTuple):
    """A condition on a label."""

    label: str
    operator: Operator
    value: str

    @property
    def alternatives(self) -> list[str] | None:
        """The values that fit; None if they are not known, as of a variable or a pattern."""
        if VARIABLE.search(self.value) or MARKER in self.value:
            return None
        if self.operator == "=":
            return [self.value]
        if self.operator != "=~":
            return None
        pattern = self.value.removeprefix("^").removesuffix("$")
        if pattern.startswith("(") and pattern.endswith(")"):
            pattern = pattern[1:-1].removeprefix("?:")
        words = pattern.replace("\\.", ".").split("|")
        is_plain = "." not in pattern.replace("\\.", "") and "+" not in pattern
        if is_plain and all(map(_WORDS.fullmatch, words)):
            return words
        return None

    @property
    def needs_label(self) -> bool:
        """True if series without the label do not fit."""
        if self.operator == "=":
            return self.value != ""
        return bool(self.operator == "=~" and self.alternatives)


class Selector(NamedTuple):
    """Series by name and labels; the name is empty if it is not known."""

    name: str
    matchers: tuple[Matcher, ...]


class Rate(NamedTuple):
    """A function such as `rate`, and its series."""

    function: str
    selector: Selector


class Quantile(NamedTuple):
    """A call of `histogram_quantile`."""

    selectors: tuple[Selector, ...]
    without_bounds: bool
    """An aggregation drops the label `le`."""


class Grouping(NamedTuple):
    """Labels in the `by` of an aggregation, and its series."""

    labels: tuple[str, ...]
    selectors: tuple[Selector, ...]


@dataclass(slots=True)
class Expression:
    """The selectors of an expression, and the functions around them."""

    selectors: list[Selector] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    quantiles: list[Quantile] = field(default_factory=list)
    groupings: list[Grouping] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    values: Range = ANY
    """Values that the whole expression can have."""


def operators_in(text: str) -> int:
    """Returns the operators and parentheses of an expression, those in its strings left out.

    An expression that is too long or too deep counts as one operator, because it is not parsed.
    """
    if len(text) > MAX_LENGTH:
        return 1
    count = len(_OPERATOR.findall(_STRING.sub("", text)))
    return count if count <= MAX_OPERATORS else 1


def read_promql(text: str) -> Expression:
    """Returns the selectors and functions of an expression.

    Raises:
        PromqlError: It is too long or too deep, or is not PromQL.
        ImportError: The parser is not installed.
    """
    import promql_parser

    if len(text) > MAX_LENGTH:
        raise PromqlError(f"it is longer than {MAX_LENGTH >> 10} KiB")
    if len(_OPERATOR.findall(_STRING.sub("", text))) > MAX_OPERATORS:
        raise PromqlError(f"it has more than {MAX_OPERATORS} operators and parentheses")
    if sum(1 for _ in VARIABLE.finditer(text)) > MAX_VARIABLES:
        raise PromqlError(f"it has more than {MAX_VARIABLES} variables")
    error: ValueError | None = None
    for plain in _without_variables(text):
        try:
            tree = promql_parser.parse(plain)
        except ValueError as reason:
            error = error or reason
            continue
        expression = Expression()
        _walk(tree, expression)
        expression.comparisons = list(comparisons_in(tree))
        expression.values = range_of(tree)
        return expression
    raise PromqlError(" ".join(str(error).split())[:200])


def names_in(text: str) -> Iterator[str]:
    """Yields the names of metrics in a text by search, which needs no parser."""
    for match in metrics_in(text):
        yield match[0]


def metrics_in(text: str) -> Iterator[re.Match[str]]:
    """Yields the names of metrics in any text, with their places."""
    return _NAME.finditer(text)


def _without_variables(text: str) -> Iterator[str]:
    """Yields the expression with values in the places of its variables.

    A variable between other text can be a number or a label, so there are two proposals.
    """
    if VARIABLE.search(text) is None:
        yield text
        return
    yield _replaced(text, "1")
    yield _replaced(text, MARKER)


def _replaced(text: str, plain: str) -> str:
    strings = [(match.start(), match.end()) for match in _STRING.finditer(text)]
    parts: list[str] = []
    position = 0
    for match in VARIABLE.finditer(text):
        if any(start < match.start() < end for start, end in strings):
            continue
        before = text[position : match.start()]
        parts.append(before)
        context = "".join(parts)[-CONTEXT:]
        parts.append(_stand_in(context, text[match.end() : match.end() + 1], plain))
        position = match.end()
    parts.append(text[position:])
    return "".join(parts)


def _stand_in(before: str, after: str, plain: str) -> str:
    """Returns what replaces a variable between two texts."""
    line = before.rstrip()
    is_joined = _NAME_END.search(before[-1:]) or _NAME_END.search(after)
    if before.rfind("[") > before.rfind("]") or line.endswith(("offset", "offset -")):
        return "" if before[-1:].isalnum() else "5m"
    if is_joined:
        return MARKER
    if before.rfind("{") > before.rfind("}"):
        return '"$variable"' if line.endswith(("=", "~")) else f'{MARKER}=~".*"'
    opening = before.rfind("(")
    if opening > before.rfind(")") and before[:opening].rstrip().lower().endswith(_GROUPINGS):
        return MARKER
    return plain


def _walk(root: Any, expression: Expression) -> None:
    import promql_parser as ast

    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.VectorSelector, ast.MatrixSelector)):
            expression.selectors += _selectors_of(node)
            continue
        if isinstance(node, ast.Call):
            _read_call(node, expression)
        elif isinstance(node, ast.AggregateExpr):
            labels = _grouping(node)
            if labels is not None and not _makes_labels(node.expr):
                selectors = tuple(_selectors_below(node.expr))
                expression.groupings.append(Grouping(labels, selectors))
        pending += reversed(_children(node))


def _children(node: Any) -> list[Any]:
    import promql_parser as ast

    if isinstance(node, ast.Call):
        return list(node.args)
    if isinstance(node, ast.AggregateExpr):
        return [node.expr] if node.param is None else [node.param, node.expr]
    if isinstance(node, ast.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, (ast.ParenExpr, ast.UnaryExpr, ast.SubqueryExpr)):
        return [node.expr]
    return []


def _selectors_below(root: Any) -> Iterator[Selector]:
    import promql_parser as ast

    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.VectorSelector, ast.MatrixSelector)):
            yield from _selectors_of(node)
        pending += reversed(_children(node))


def _makes_labels(root: Any) -> bool:
    """Returns whether a function or an operator below adds labels to series."""
    import promql_parser as ast

    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and node.func.name in _NEW_LABELS:
            return True
        if isinstance(node, ast.BinaryExpr) and node.modifier is not None:
            return True
        pending += _children(node)
    return False


def _read_call(node: Any, expression: Expression) -> None:
    import promql_parser as ast

    name = node.func.name
    arguments: Sequence[Any] = list(node.args)
    if name in RATES and arguments and isinstance(arguments[0], ast.MatrixSelector):
        for selector in _selectors_of(arguments[0]):
            expression.rates.append(Rate(name, selector))
    if name == "histogram_quantile" and len(arguments) == 2:
        selectors = tuple(_selectors_below(arguments[1]))
        expression.quantiles.append(Quantile(selectors, _drops_bounds(arguments[1])))


def _drops_bounds(root: Any) -> bool:
    """Returns whether an aggregation on the way to the series drops the label `le`.

    If a variable of Grafana stands for a label, the answer is not known, and no.
    """
    import promql_parser as ast

    node = root
    while node is not None:
        if isinstance(node, ast.AggregateExpr):
            labels = [] if node.modifier is None else list(node.modifier.labels)
            if str(node.op).lower() not in _KEEPS_LABELS:
                if any(MARKER in label for label in labels):
                    return False
                if not _keeps(BUCKET_BOUND, node.modifier):
                    return True
        node = _series_of(node)
    return False


def _keeps(label: str, modifier: Any) -> bool:
    """Returns whether an aggregation keeps a label; without `by` and `without` it keeps none."""
    import promql_parser as ast

    if modifier is None:
        return False
    if modifier.type == ast.AggModifierType.Without:
        return label not in modifier.labels
    return label in modifier.labels


def _series_of(node: Any) -> Any | None:
    """Returns the part of an expression whose labels it has; None for other expressions."""
    import promql_parser as ast

    if isinstance(node, (ast.AggregateExpr, ast.ParenExpr, ast.UnaryExpr, ast.SubqueryExpr)):
        return node.expr
    if isinstance(node, ast.Call) and node.func.name not in _NEW_LABELS and node.args:
        return next(iter(node.args))
    return None


def _grouping(node: Any) -> tuple[str, ...] | None:
    """Returns the labels of `by`; None for an aggregation without it."""
    import promql_parser as ast

    if node.modifier is None or node.modifier.type != ast.AggModifierType.By:
        return None
    return tuple(node.modifier.labels)


def _selectors_of(node: Any) -> list[Selector]:
    """Returns a selector for each name that a node of the tree stands for."""
    vector = getattr(node, "vector_selector", node)
    matchers = []
    names = [vector.name or ""]
    for matcher in vector.matchers.matchers:
        read = Matcher(matcher.name, _operator(matcher.op), matcher.value)
        if read.label != "__name__":
            matchers.append(read)
        elif read.alternatives is not None:
            names = read.alternatives
    if vector.matchers.or_matchers:
        matchers = []
    selectors = []
    for name in names:
        is_known = MARKER not in name and VARIABLE.search(name) is None
        selectors.append(Selector(name if is_known else "", tuple(matchers)))
    return selectors


def _operator(operator: Any) -> Operator:
    import promql_parser as ast

    if operator == ast.MatchOp.Equal:
        return "="
    if operator == ast.MatchOp.NotEqual:
        return "!="
    return "=~" if operator == ast.MatchOp.Re else "!~"
