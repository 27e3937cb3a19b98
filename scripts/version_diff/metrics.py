"""Prometheus metrics, with their labels, buckets and conditions.

Start reading at `metric_facts`.
"""

import ast
import re
from collections.abc import Iterator

from scripts.version_diff.fact import Fact
from scripts.version_diff.package import Module, Package
from scripts.version_diff.values import (
    CannotReadError,
    Scope,
    called_name,
    evaluate,
    fields_of,
    keyword_of,
    list_text,
)
from vllm_facts.history import CONTEXT_BUCKETS

PREFIX = "vllm:"
TYPE = re.compile(r"(counter|gauge|histogram|summary|info)(?:_?cls)?", re.IGNORECASE)
"""The function that creates a metric, such as `self._gauge_cls` or `Counter`."""
COUNTER_SUFFIX = "_total"
INFO_CLASS = "CacheConfig"
INFO_METRIC = f"{PREFIX}cache_config_info"
"""A metric whose labels are the fields of a class."""
LOGGERS_FILE = "vllm/v1/metrics/loggers.py"
OLD_ENGINE_FILE = "vllm/engine/metrics.py"
"""The metrics of the engine before V1, which the V1 engine does not have."""
BASE_LABELS = "labelnames"
"""The variable of the labels that all metrics have, and the parameter with them."""
LABELS_PLACE = 2
"""Place of the labels among the arguments, after the name and the documentation."""
BUCKETS_FILE = "vllm/v1/metrics/buckets.py"
BUCKETS_TABLE = "_STATIC_FAMILY_DEFAULTS"
BUCKETS_FUNCTION = "histogram_buckets"
"""Returns an entry of the table, or powers of tens up to the length of the context."""
CONTEXT_FAMILY = "request_tokens"
CONTEXT_FUNCTION = "build_1_2_5_buckets"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def metric_facts(package: Package) -> Iterator[Fact]:
    """Yields metrics. Counters have the suffix that Prometheus adds to their names.

    Of a metric that both engines have, the one of V1 counts.
    """
    facts: list[Fact] = []
    old_facts: list[Fact] = []
    for module in package.modules(text=PREFIX):
        if module.path == OLD_ENGINE_FILE:
            old_facts += _facts_of_module(package, module)
        else:
            facts += _facts_of_module(package, module)
    names = {fact.name for fact in facts}
    yield from facts
    for fact in old_facts:
        if fact.name not in names:
            yield fact


def _facts_of_module(package: Package, module: Module) -> Iterator[Fact]:
    scope = Scope(package, module)
    for name, value in _attributes_of_self(module).items():
        scope = scope.with_name(f"self.{name}", value)
    base_labels = _base_labels(package)
    if base_labels is not None:
        scope = scope.with_name(BASE_LABELS, base_labels)
    calls: dict[ast.Call, Function] = {}
    for function in ast.walk(module.tree):
        if isinstance(function, Function):
            calls.update(dict.fromkeys(_calls(function), function))
    for call, function in calls.items():
        yield from _metrics_of_call(scope.inside(function, call.lineno), function, call)
    for call in _calls(module.tree):
        if call not in calls:
            yield from _metrics_of_call(scope, module.tree, call)
    if INFO_METRIC in module.text:
        yield from _info_metric(scope)


def _base_labels(package: Package) -> ast.AST | None:
    """Returns the list that the logger passes to the functions that create metrics."""
    module = package.module(LOGGERS_FILE)
    if module is None:
        return None
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == BASE_LABELS:
            return node.value
    return None


def _attributes_of_self(module: Module) -> dict[str, ast.AST]:
    """Returns the values of attributes such as `self._labelnames` that are assigned once."""
    values: dict[str, list[ast.AST]] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and node.value:
            values.setdefault(target.attr, []).append(node.value)
    return {name: nodes[0] for name, nodes in values.items() if len(nodes) == 1}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and TYPE.fullmatch(called_name(node).strip("_")):
            yield node


def _metrics_of_call(scope: Scope, function: ast.AST, call: ast.Call) -> Iterator[Fact]:
    match = TYPE.fullmatch(called_name(call).strip("_"))
    name_node = keyword_of(call, "name") or next(iter(call.args), None)
    if match is None or name_node is None:
        return
    attributes = {"type": match[1].lower()}
    labels = keyword_of(call, "labelnames") or next(iter(call.args[LABELS_PLACE:]), None)
    if labels is not None:
        attributes["labels"] = list_text(scope, _Inserted(scope).visit(labels))
    buckets = keyword_of(call, "buckets")
    if buckets is not None:
        attributes["buckets"] = _buckets_text(scope, buckets)
    condition = " and ".join(_conditions(function, call))
    if condition:
        attributes["condition"] = condition
    for name in _names(scope, function, name_node):
        if attributes["type"] == "counter":
            name = name.removesuffix(COUNTER_SUFFIX) + COUNTER_SUFFIX
        if name.startswith(PREFIX) and name != INFO_METRIC:
            yield Fact("metric", name, attributes=attributes, area=scope.module.path)


class _Inserted(ast.NodeTransformer):
    """Inserts the values of attributes of `self`, also into values."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        value = self._scope.local_names.get(ast.unparse(node))
        if value is None:
            return node
        return value


def _buckets_text(scope: Scope, node: ast.expr) -> str:
    """Returns the bounds of a histogram; one of the functions that vLLM's code calls is known."""
    call: ast.AST = node
    if isinstance(node, ast.Name):
        resolved = scope.resolve(node.id)
        if resolved is not None:
            call = resolved[1]
    if isinstance(call, ast.Call):
        if called_name(call) == CONTEXT_FUNCTION:
            return CONTEXT_BUCKETS
        if called_name(call) == BUCKETS_FUNCTION:
            family = evaluate(scope, call.args[0])
            if family == CONTEXT_FAMILY:
                return CONTEXT_BUCKETS
            return _table_text(scope.package, str(family))
    return list_text(scope, node)


def _table_text(package: Package, family: str) -> str:
    """Returns the bounds of a family of histograms."""
    module = package.module(BUCKETS_FILE)
    assert module is not None
    table = module.names[BUCKETS_TABLE]
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == family:
            return list_text(Scope(package, module), value)
    raise CannotReadError


def _conditions(node: ast.AST, call: ast.Call) -> Iterator[str]:
    """Yields the conditions inside a function under which it reaches a call."""
    for block in ("body", "orelse"):
        statements = getattr(node, block, None)
        if not isinstance(statements, list):
            continue
        exits: list[str] = []
        for statement in statements:
            if any(each is call for each in ast.walk(statement)):
                if isinstance(node, ast.If):
                    yield _negated(node.test, is_negated=block == "orelse")
                yield from exits
                yield from _conditions(statement, call)
                return
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return):
                exits.append(_negated(statement.test, is_negated=True))


def _negated(test: ast.expr, *, is_negated: bool) -> str:
    if not is_negated:
        return ast.unparse(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    return f"not ({ast.unparse(test)})"


def _names(scope: Scope, function: ast.AST, node: ast.expr) -> Iterator[str]:
    """Yields the name of a metric; parts that only vLLM knows are in braces.

    The name of a loop over a table is each name in the table, whose rows are tuples.
    """
    if isinstance(node, ast.JoinedStr):
        yield from _joined_names(scope, node)
        return
    try:
        yield str(evaluate(scope, node))
    except CannotReadError:
        for row in ast.walk(function):
            if isinstance(row, ast.Tuple) and row.elts and isinstance(row.elts[0], ast.Constant):
                yield str(row.elts[0].value)


def _joined_names(scope: Scope, node: ast.JoinedStr) -> Iterator[str]:
    """Yields names such as `vllm:hisparse_{name}`, where a loop has the rows of a table."""
    text = ast.unparse(node).removeprefix("f").strip("'\"")
    variables = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    loop: ast.AST | None = None
    if len(variables) == 1 and isinstance(variables[0], ast.Name):
        loop = scope.local_names.get(variables[0].id)
    if not isinstance(loop, ast.For):
        yield text
        return
    try:
        rows = evaluate(scope, loop.iter)
    except CannotReadError:
        yield text
        return
    for row in rows if isinstance(rows, list | tuple) else ():
        yield text.replace(f"{{{ast.unparse(variables[0])}}}", str(row[0]))


def _info_metric(scope: Scope) -> Iterator[Fact]:
    resolved = scope.package.module_named("vllm.config")
    if resolved is None:
        return
    owner = Scope(scope.package, resolved).class_at(ast.Name(INFO_CLASS))
    if owner is not None:
        labels = ", ".join(["engine", *fields_of(*owner)])
        attributes = {"type": "gauge", "labels": labels}
        yield Fact("metric", INFO_METRIC, attributes=attributes, area=scope.module.path)
