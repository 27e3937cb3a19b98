"""Environment variables: the entries of `environment_variables` in `vllm/envs.py`."""

import ast
from collections.abc import Iterator

from scripts.version_diff.annotations import type_text
from scripts.version_diff.fact import UNKNOWN, Fact
from scripts.version_diff.package import Package
from scripts.version_diff.values import Scope, called_name, list_text, value_text

FILE = "vllm/envs.py"
GETTERS = ("getenv", "get")
"""`os.getenv` and `os.environ.get`."""
CHOOSERS = ("env_with_choices", "env_list_with_choices", "env_set_with_choices")


def variable_facts(package: Package) -> Iterator[Fact]:
    """Yields environment variables with type, default and choices."""
    module = package.module(FILE)
    if module is None:
        return
    scope = Scope(package, module)
    variables = module.names.get("environment_variables")
    if not isinstance(variables, ast.Dict):
        return
    types = _annotations(module.tree)
    for key, value in zip(variables.keys, variables.values, strict=True):
        if not isinstance(key, ast.Constant):
            yield Fact("environment variable", UNKNOWN)
            continue
        name = str(key.value)
        attributes = {}
        if name in types:
            attributes["type"] = type_text(scope, types[name])
        attributes.update(_attributes(scope, name, value))
        yield Fact("environment variable", name, attributes=attributes)


def _annotations(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the types that a block for type checkers declares."""
    return {
        node.target.id: node.annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _attributes(scope: Scope, name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        called = called_name(node)
        if called in CHOOSERS and len(node.args) >= 3:
            yield "default", value_text(scope, node.args[1])
            yield "choices", list_text(scope, node.args[2])
            return
        if called in GETTERS and any(_is_name(argument, name) for argument in node.args[:1]):
            default: ast.expr = ast.Constant(None)
            if len(node.args) > 1:
                default = node.args[1]
            yield "default", value_text(scope, default)
            return
    yield "default", UNKNOWN


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name
