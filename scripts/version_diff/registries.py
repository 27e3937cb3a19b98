"""Names that vLLM registers: parsers and quantizations."""

import ast
from collections.abc import Iterator
from typing import Literal

from scripts.version_diff.fact import Fact
from scripts.version_diff.package import Package
from scripts.version_diff.values import Scope, called_name, keyword_of, texts_in

MANAGERS: dict[str, Literal["tool parser", "reasoning parser"]] = {
    "ToolParserManager": "tool parser",
    "ReasoningParserManager": "reasoning parser",
}
TABLES: dict[str, Literal["tool parser", "reasoning parser"]] = {
    "_TOOL_PARSERS_TO_REGISTER": "tool parser",
    "_REASONING_PARSERS_TO_REGISTER": "reasoning parser",
}
"""Tables of parsers that are imported when they are needed, since 0.12."""
QUANTIZATIONS = ("QuantizationMethods", "QUANTIZATION_METHODS")
QUANTIZATION_FILE = "vllm/model_executor/layers/quantization/__init__.py"


def parser_facts(package: Package) -> Iterator[Fact]:
    """Yields parsers of tool calls and of reasoning."""
    for module in package.modules(text="ParserManager"):
        scope = Scope(package, module)
        for table, kind in TABLES.items():
            names = module.names.get(table)
            if isinstance(names, ast.Dict):
                for key in names.keys:
                    if isinstance(key, ast.Constant):
                        yield Fact(kind, str(key.value))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    yield from _registered(scope, decorator)


def _registered(scope: Scope, decorator: ast.expr) -> Iterator[Fact]:
    if not isinstance(decorator, ast.Call) or called_name(decorator) != "register_module":
        return
    assert isinstance(decorator.func, ast.Attribute)
    kind = MANAGERS.get(ast.unparse(decorator.func.value))
    node = keyword_of(decorator, "name") or next(iter(decorator.args), None)
    if kind is None or node is None:
        return
    for name in texts_in(scope, node):
        yield Fact(kind, name)


def quantization_facts(package: Package) -> Iterator[Fact]:
    """Yields the values of --quantization."""
    module = package.module(QUANTIZATION_FILE)
    if module is None:
        return
    scope = Scope(package, module)
    deprecated = _names(scope, "DEPRECATED_QUANTIZATION_METHODS")
    for table in QUANTIZATIONS:
        names = _names(scope, table)
        for name in names:
            attributes = {}
            if name in deprecated:
                attributes["deprecated"] = "yes"
            yield Fact("quantization", name, attributes=attributes)
        if names:
            return


def _names(scope: Scope, table: str) -> list[str]:
    node = scope.module.names.get(table)
    if isinstance(node, ast.Dict):
        return [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
    if node is None:
        return []
    return texts_in(scope, node)
