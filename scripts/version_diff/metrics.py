"""Prometheus metrics, with their labels and buckets."""

import ast
import re
from collections.abc import Iterator

from scripts.version_diff.fact import Fact
from scripts.version_diff.package import Package
from scripts.version_diff.values import (
    CannotReadError,
    Scope,
    called_name,
    evaluate,
    fields_of,
    keyword_of,
    list_text,
)

PREFIX = "vllm:"
TYPE = re.compile(r"(counter|gauge|histogram|summary|info)(?:_?cls)?", re.IGNORECASE)
"""The function that creates a metric, such as `self._gauge_cls` or `Counter`."""
COUNTER_SUFFIX = "_total"
INFO_CLASS = "CacheConfig"
INFO_METRIC = f"{PREFIX}cache_config_info"
"""A metric whose labels are the fields of a class."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def metric_facts(package: Package) -> Iterator[Fact]:
    """Yields metrics. Counters have the suffix that Prometheus adds to their names."""
    for module in package.modules(text=PREFIX):
        scope = Scope(package, module)
        calls: dict[ast.Call, ast.AST] = {}
        for function in ast.walk(module.tree):
            if isinstance(function, Function):
                calls.update(dict.fromkeys(_calls(function), function))
        for call, function in calls.items():
            assert isinstance(function, Function)
            yield from _metrics_of_call(scope.inside(function), function, call)
        for call in _calls(module.tree):
            if call not in calls:
                yield from _metrics_of_call(scope, module.tree, call)
        if INFO_METRIC in module.text:
            yield from _info_metric(scope)


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
    for attribute, argument in (("labels", "labelnames"), ("buckets", "buckets")):
        node = keyword_of(call, argument)
        if node is not None:
            attributes[attribute] = list_text(scope, node)
    for name in _names(scope, function, name_node):
        if attributes["type"] == "counter":
            name = name.removesuffix(COUNTER_SUFFIX) + COUNTER_SUFFIX
        if name.startswith(PREFIX):
            yield Fact("metric", name, attributes=attributes)


def _names(scope: Scope, function: ast.AST, node: ast.expr) -> Iterator[str]:
    """Yields the name of a metric; parts that only vLLM knows are in braces.

    The name of a loop over a table is each name in the table, whose rows are tuples.
    """
    if isinstance(node, ast.JoinedStr):
        yield ast.unparse(node).removeprefix("f").strip("'\"")
        return
    try:
        yield str(evaluate(scope, node))
    except CannotReadError:
        for row in ast.walk(function):
            if isinstance(row, ast.Tuple) and row.elts and isinstance(row.elts[0], ast.Constant):
                yield str(row.elts[0].value)


def _info_metric(scope: Scope) -> Iterator[Fact]:
    resolved = scope.package.module_named("vllm.config")
    if resolved is None:
        return
    owner = Scope(scope.package, resolved).class_at(ast.Name(INFO_CLASS))
    if owner is not None:
        labels = ", ".join(["engine", *fields_of(*owner)])
        yield Fact("metric", INFO_METRIC, attributes={"type": "gauge", "labels": labels})
