"""Syntax trees of the code, for tests of its structure."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the syntax tree of a file, which each process parses once."""
    return ast.parse(path.read_text("utf-8"))


def dotted_name(node: ast.AST) -> str:
    """Returns a name with its attributes, such as `a.b`; empty for another expression."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(attributes)])


def last_name(node: ast.AST) -> str:
    """Returns the name or attribute at the end of an expression; empty for another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements in `node`, at any depth.

    Expressions, which contain no statements, are nine tenths of a tree.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)
