"""Prometheus metrics, with their labels and buckets."""

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

PREFIX = "vllm:"
TYPE = re.compile(r"(counter|gauge|histogram|summary|info)(?:_?cls)?", re.IGNORECASE)
"""The function that creates a metric, such as `self._gauge_cls` or `Counter`."""
INFO_CLASS = "CacheConfig"
INFO_METRIC = f"{PREFIX}cache_config_info"
"""A metric whose labels are the fields of a class."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def metric_facts(package: Package) -> Iterator[Fact]:
    """Yields metrics."""
    for module in package.modules(text=PREFIX):
        scope = Scope(package, module)
        for function_scope, call in _calls(scope, module):
            yield from _metric(function_scope, call)
        if INFO_METRIC in module.text:
            yield from _info_metric(scope)


def _calls(scope: Scope, module: Module) -> Iterator[tuple[Scope, ast.Call]]:
    """Yields calls with the scope of the function around them."""
    inside = set()
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            function_scope = scope.inside(node)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and inner not in inside:
                    inside.add(inner)
                    yield function_scope, inner
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and node not in inside:
            yield scope, node


def _metric(scope: Scope, call: ast.Call) -> Iterator[Fact]:
    match = TYPE.fullmatch(called_name(call).strip("_"))
    name_node = keyword_of(call, "name") or next(iter(call.args), None)
    if match is None or name_node is None:
        return
    name = _name(scope, name_node)
    if not name.startswith(PREFIX):
        return
    attributes = {"type": match[1].lower()}
    for attribute, argument in (("labels", "labelnames"), ("buckets", "buckets")):
        node = keyword_of(call, argument)
        if node is not None:
            attributes[attribute] = list_text(scope, node)
    yield Fact("metric", name, attributes=attributes)


def _name(scope: Scope, node: ast.expr) -> str:
    """Returns the name of a metric; parts that only vLLM knows are in braces."""
    if isinstance(node, ast.JoinedStr):
        return ast.unparse(node).removeprefix("f").strip("'\"")
    try:
        return str(evaluate(scope, node))
    except CannotReadError:
        return ""


def _info_metric(scope: Scope) -> Iterator[Fact]:
    resolved = scope.package.module_named("vllm.config")
    if resolved is None:
        return
    owner = Scope(scope.package, resolved).class_at(ast.Name(INFO_CLASS))
    if owner is not None:
        labels = ", ".join(["engine", *fields_of(*owner)])
        yield Fact("metric", INFO_METRIC, attributes={"type": "gauge", "labels": labels})
