"""Annotations: types in one spelling, and the values that they allow."""

import ast
from collections.abc import Iterator

from scripts.version_diff.fact import UNKNOWN
from scripts.version_diff.values import MAX_DEPTH, Scope, evaluate, type_arguments

ENUM = "Enum"
GENERIC_NAMES = {"List": "list", "Dict": "dict", "Set": "set", "Tuple": "tuple", "Type": "type"}


def choices_in(scope: Scope, annotation: ast.AST | None, depth: int = 0) -> list[object]:
    """Returns the values of all `Literal`s in an annotation, and the names in each `Enum`."""
    choices: list[object] = []
    if annotation is None or depth > MAX_DEPTH:
        return choices
    match annotation:
        case ast.Subscript(value=ast.Name(id="Literal")):
            with_literals = evaluate(scope, annotation)
            assert isinstance(with_literals, list)
            return with_literals
        case ast.Name(id=name):
            return _choices_of_name(scope, name, depth)
        case ast.Subscript(slice=inner):
            return choices_in(scope, inner, depth + 1)
        case ast.Tuple(elts=elements):
            for element in elements:
                choices += choices_in(scope, element, depth + 1)
        case ast.BinOp(left=left, right=right):
            choices = choices_in(scope, left, depth + 1) + choices_in(scope, right, depth + 1)
        case ast.Constant(value=str(text)):
            return choices_in(scope, _parsed(text), depth + 1)
    return choices


def _choices_of_name(scope: Scope, name: str, depth: int) -> list[object]:
    """Returns the values of an alias, or the names of an enumeration."""
    resolved = scope.resolve(name)
    if resolved is None or isinstance(resolved[1], ast.Name):
        return []
    if isinstance(resolved[1], ast.ClassDef):
        return _members_of_enum(resolved[1])
    return choices_in(resolved[0], resolved[1], depth + 1)


def _members_of_enum(node: ast.ClassDef) -> list[object]:
    """Returns the names of the members of an `Enum`, by which a command line selects them."""
    if ENUM not in map(ast.unparse, node.bases):
        return []
    return [
        ast.unparse(statement.targets[0])
        for statement in node.body
        if isinstance(statement, ast.Assign)
    ]


def type_text(scope: Scope, annotation: ast.AST | None, depth: int = 0) -> str:
    """Returns an annotation in one spelling: `Optional[List[int]]` is `list[int] | None`.

    A `Literal`, also by another name, is "choice": `choices_in` has its values.
    """
    if annotation is None or depth > MAX_DEPTH:
        return UNKNOWN
    return " | ".join(dict.fromkeys(_sorted_members(_members(scope, annotation, depth))))


def _sorted_members(members: Iterator[str]) -> list[str]:
    """Returns members in alphabetical order, with None at the end."""
    in_order = sorted(members)
    return [member for member in in_order if member != "None"] + in_order.count("None") * ["None"]


def _members(scope: Scope, node: ast.AST, depth: int) -> Iterator[str]:
    """Yields the members of a union."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _members(scope, left, depth)
            yield from _members(scope, right, depth)
        case ast.Constant(value=None):
            yield "None"
        case ast.Constant(value=str(text)):
            yield from _members(scope, _parsed(text), depth)
        case ast.Subscript():
            yield from _members_of_generic(scope, node, depth)
        case ast.Name(id=name):
            yield from _members_of_alias(scope, name, depth)
        case _:
            yield ast.unparse(node)


def _members_of_generic(scope: Scope, node: ast.Subscript, depth: int) -> Iterator[str]:
    generic = ast.unparse(node.value).removeprefix("typing.")
    arguments = type_arguments(node)
    if generic == "Literal":
        yield "choice"
    elif generic == "Annotated":
        yield from _members(scope, arguments[0], depth)
    elif generic in ("Optional", "Union"):
        for argument in arguments:
            yield from _members(scope, argument, depth)
        if generic == "Optional":
            yield "None"
    else:
        items = ", ".join(type_text(scope, argument, depth + 1) for argument in arguments)
        yield f"{GENERIC_NAMES.get(generic, generic)}[{items}]"


def _members_of_alias(scope: Scope, name: str, depth: int) -> Iterator[str]:
    """Yields the members of a union of built-in types and choices, or a name as it is."""
    resolved = scope.resolve(name)
    members = [GENERIC_NAMES.get(name, name)]
    if resolved is not None and depth < MAX_DEPTH:
        alias_scope, node = resolved
        if isinstance(node, ast.Subscript | ast.BinOp):
            aliased = _sorted_members(_members(alias_scope, node, depth + 1))
            if all(member == "None" or member.islower() for member in aliased):
                members = aliased
    yield from members


def _parsed(text: str) -> ast.AST:
    """Returns the expression of an annotation in quotation marks."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Name(text)
