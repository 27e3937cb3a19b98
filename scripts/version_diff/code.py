"""Errors that clients can see, and functions that decide what clients see.

A changed behavior need not change a declaration. These facts say where to look for it.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from scripts.version_diff.fact import Fact
from scripts.version_diff.package import Module, Package

ERROR_FOLDERS = ("vllm/entrypoints/", "vllm/sampling_params.py", "vllm/pooling_params.py")
CODE_FOLDERS = (
    "vllm/entrypoints/",
    "vllm/v1/core/kv_cache_manager.py",
    "vllm/v1/core/sched/",
    "vllm/v1/core/single_type_kv_cache_manager.py",
    "vllm/v1/kv_offload/cpu/policies/",
    "vllm/v1/engine/core.py",
    "vllm/v1/engine/output_processor.py",
)
NOT_SERVED = re.compile(r"/(cli/|llm\.py|.*offline|.*run_batch|.*/dp_supervisor)")
"""Files below these folders that no request reaches."""
START_FOLDER = "vllm/entrypoints/launchers/"
"""Its errors are those of a command line, and its functions run when the server starts."""
AT_START = re.compile(r"__init__|main|_?(init|register|setup)_.*")
"""Functions that run when the server starts; they change whenever their classes do."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def error_facts(package: Package) -> Iterator[Fact]:
    """Yields the texts of exceptions."""
    for folder in ERROR_FOLDERS:
        for module in package.modules(folder, "raise "):
            if NOT_SERVED.search(module.path):
                continue
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    text = _text(node.exc)
                    if text:
                        yield Fact("error", text)


def code_facts(package: Package) -> Iterator[Fact]:
    """Yields classes and modules, with a digest of the code of each function as an attribute.

    Comments, docstrings, annotations and logging are not part of the code.
    """
    for folder in CODE_FOLDERS:
        for module in package.modules(folder):
            if NOT_SERVED.search(module.path) or module.path.startswith(START_FOLDER):
                continue
            for name, body in _groups(module):
                digests = {
                    node.name: _digest(node)
                    for node in body
                    if isinstance(node, Function) and not AT_START.fullmatch(node.name)
                }
                if digests:
                    area = str(PurePosixPath(module.path).parent)
                    yield Fact("code", name, attributes=digests, area=area)


def _groups(module: Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yields the module and its classes. A class keeps its name when it moves to another file."""
    yield module.path, module.tree.body
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node.body


def _text(call: ast.Call) -> str:
    """Returns the message of an exception, with {} for what is inserted."""
    arguments = [*call.args, *(word.value for word in call.keywords)]
    for argument in arguments:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
        if isinstance(argument, ast.JoinedStr):
            return "".join(map(_text_of_part, argument.values))
    return ""


def _text_of_part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return "{}"


class _Stripper(ast.NodeTransformer):
    """Removes what does not change the behavior of a function."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant)
        is_log = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith(
            "logger."
        )
        if is_text or is_log:
            return None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _digest(function: Function) -> str:
    stripped = _Stripper().visit(ast.parse(ast.unparse(function)).body[0])
    stripped.returns = None
    return hashlib.sha256(ast.dump(stripped).encode()).hexdigest()[:12]
