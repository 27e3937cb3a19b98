"""The values that a query of metrics can have, and thresholds that they never reach.

Start reading at `range_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from workbench.check.watch.names import PREFIX, plain_name

INFINITY = math.inf
_QUANTITY = re.compile(r"\s*(\d{1,15}(?:\.\d{0,9})?)(m|k|Ki|M|Mi|%)?\s*")
UNITS: Mapping[str, float] = {"m": 1e-3, "k": 1e3, "Ki": 1024, "M": 1e6, "Mi": 1 << 20, "%": 1e-2}
MAX_NODES = 1_000
"""Parts of an expression whose values are computed."""


class Range(NamedTuple):
    """The least and the largest value."""

    low: float
    high: float


ANY = Range(-INFINITY, INFINITY)
POSITIVE = Range(0.0, INFINITY)
SHARE = Range(0.0, 1.0)
SHARES = frozenset(
    (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:cpu_cache_usage_perc",
        "vllm:gpu_prefix_cache_hit_rate",
        "vllm:cpu_prefix_cache_hit_rate",
        "vllm:spec_decode_draft_acceptance_rate",
    )
)
"""Gauges from 0 to 1; most of their names end in perc, although 1 is 100 percent."""
KEEPING = frozenset(
    (
        "avg_over_time",
        "max_over_time",
        "min_over_time",
        "last_over_time",
        "quantile_over_time",
        "sort",
        "sort_desc",
        "label_replace",
        "label_join",
    )
)
"""Functions whose values lie between those of their series."""
KEEPING_AGGREGATIONS = frozenset(("avg", "max", "min", "quantile", "topk", "bottomk"))
FLIPPED = {">": "<", "<": ">", ">=": "<=", "<=": ">="}


class Comparison(NamedTuple):
    """A comparison of a query with a number, in an expression."""

    metric: str
    """First metric of the query."""
    values: Range
    operator: str
    number: float

    @property
    def verdict(self) -> str:
        """`never` or `always` if the comparison decides nothing; empty for another one."""
        low, high = self.values
        if self.operator in (">", ">="):
            is_equal_enough = self.operator == ">="
            if high < self.number or (high == self.number and not is_equal_enough):
                return "never"
            return ""
        if low > self.number or (low == self.number and self.operator == "<"):
            return "never"
        is_always = high < self.number or (high == self.number and self.operator == "<=")
        return "always" if is_always and high < INFINITY else ""


def quantity(text: str) -> float | None:
    """Returns the number of a text such as 0.9, 900m or 90%; None for another text."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    return float(match[1]) * UNITS.get(match[2] or "", 1.0)


def range_of_metric(name: str) -> Range:
    """Returns the values of a series."""
    name = plain_name(name)
    if name in SHARES:
        return SHARE
    return POSITIVE if name.startswith(PREFIX) else ANY


def range_of(root: Any) -> Range:
    """Returns the values of a node of promql-parser's tree, as far as they are known."""
    return _Ranges().of(root)


def comparisons_in(root: Any) -> Iterator[Comparison]:
    """Yields the comparisons of queries with numbers, in a tree of promql-parser."""
    import promql_parser as ast

    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinaryExpr):
            comparison = _comparison(node)
            if comparison is not None:
                yield comparison
            pending += [node.rhs, node.lhs]
        elif isinstance(node, ast.Call):
            pending += list(node.args)
        elif isinstance(node, (ast.ParenExpr, ast.UnaryExpr, ast.SubqueryExpr, ast.AggregateExpr)):
            pending.append(node.expr)


def _comparison(node: Any) -> Comparison | None:
    operator = str(node.op).strip().lower()
    if operator not in FLIPPED:
        return None
    ranges = _Ranges()
    left = ranges.of(node.lhs)
    right = ranges.of(node.rhs)
    metric = ranges.metric
    if not metric:
        return None
    if right.low == right.high:
        return Comparison(metric, left, operator, right.low)
    if left.low == left.high:
        return Comparison(metric, right, FLIPPED[operator], left.low)
    return None


class _Ranges:
    """Computes the values of nodes, and notes the first metric."""

    def __init__(self) -> None:
        self.metric = ""
        self._nodes = 0

    def of(self, node: Any) -> Range:
        """Returns the values of a node; the expressions have at most 200 operators."""
        import promql_parser as ast

        self._nodes += 1
        if self._nodes > MAX_NODES:
            return ANY
        if isinstance(node, ast.NumberLiteral):
            return Range(float(node.val), float(node.val))
        if isinstance(node, (ast.ParenExpr, ast.SubqueryExpr)):
            return self.of(node.expr)
        if isinstance(node, ast.UnaryExpr):
            values = self.of(node.expr)
            return Range(-values.high, -values.low)
        if isinstance(node, (ast.VectorSelector, ast.MatrixSelector)):
            return self._of_selector(node)
        if isinstance(node, ast.AggregateExpr):
            return self._of_aggregation(node)
        if isinstance(node, ast.BinaryExpr):
            return self._of_operator(node)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return ANY

    def _of_selector(self, node: Any) -> Range:
        name = getattr(node, "vector_selector", node).name or ""
        self.metric = self.metric or name
        return range_of_metric(name)

    def _of_aggregation(self, node: Any) -> Range:
        values = self.of(node.expr)
        name = str(node.op).lower()
        if name in KEEPING_AGGREGATIONS:
            return values
        return POSITIVE if values.low >= 0 else ANY

    def _of_call(self, node: Any) -> Range:
        arguments = [self.of(argument) for argument in node.args]
        if node.func.name in KEEPING:
            vectors = [values for values in arguments if values.low != values.high]
            return vectors[0] if len(vectors) == 1 else ANY
        return ANY

    def _of_operator(self, node: Any) -> Range:
        left = self.of(node.lhs)
        right = self.of(node.rhs)
        operator = str(node.op).strip().lower()
        ends: list[float] = []
        if operator == "+":
            return Range(left.low + right.low, left.high + right.high)
        if operator == "-":
            return Range(left.low - right.high, left.high - right.low)
        if operator == "*":
            ends = [_product(first, second) for first in left for second in right]
        elif operator == "/" and right.low == right.high and right.low:
            ends = [first / right.low for first in left]
        elif operator in FLIPPED or operator in ("==", "!=", "and", "unless"):
            return left
        if not ends or any(math.isnan(end) for end in ends):
            return ANY
        return Range(min(ends), max(ends))


def _product(first: float, second: float) -> float:
    return 0.0 if not first or not second else first * second
