"""Names that vLLM accepts in place of an object, before it validates the type of a field.

A validator with the mode "before", or a function in the annotation of the field, looks a text up in
a table of its module: `--quantization-config.linear fp8_per_channel`. The keys of that table are
the names.
"""

import ast
from collections.abc import Iterator

from scripts.version_diff.values import ClassField, Scope, called_name, keyword_of

VALIDATOR = "field_validator"
BEFORE = "before"
FIELD_OF_ENTRY = "getattr"
"""A validator that calls it takes from an entry of the table the part with the field's name."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def shorthands_of(owner: tuple[Scope, ast.ClassDef], class_field: ClassField) -> list[str]:
    """Returns the names that stand for a value of a field, in alphabetical order."""
    names: set[str] = set()
    without_field: set[str] = set()
    for scope, function in _readers(owner, class_field):
        for name, has_field in _names_in(scope, function, class_field.name):
            names.add(name)
            if not has_field:
                without_field.add(name)
    return sorted(names - without_field)


def _readers(
    owner: tuple[Scope, ast.ClassDef], class_field: ClassField
) -> Iterator[tuple[Scope, Function]]:
    """Yields the functions that read a value of a field, and those that they pass it to."""
    functions = [(owner[0], method) for method in _validators(owner[1], class_field.name)]
    annotation = class_field.annotation
    if isinstance(annotation, ast.Name):
        resolved = class_field.scope.resolve(annotation.id)
        if resolved is not None:
            functions += _functions_named_in(*resolved)
    for scope, function in functions:
        yield scope, function
        for call in _calls(function):
            parameter = _parameter(function)
            if parameter in map(ast.unparse, call.args):
                yield from _functions_named_in(scope, call.func)


def _validators(node: ast.ClassDef, name: str) -> Iterator[Function]:
    for method in node.body:
        if not isinstance(method, Function):
            continue
        for decorator in method.decorator_list:
            if not isinstance(decorator, ast.Call) or called_name(decorator) != VALIDATOR:
                continue
            mode = keyword_of(decorator, "mode")
            fields = [each.value for each in decorator.args if isinstance(each, ast.Constant)]
            if name in fields and isinstance(mode, ast.Constant) and mode.value == BEFORE:
                yield method


def _functions_named_in(scope: Scope, node: ast.AST) -> list[tuple[Scope, Function]]:
    """Returns the functions that an expression names."""
    functions = []
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            resolved = scope.resolve(each.id)
            if resolved is not None and isinstance(resolved[1], Function):
                functions.append((resolved[0], resolved[1]))
    return functions


def _names_in(scope: Scope, function: Function, field: str) -> Iterator[tuple[str, bool]]:
    """Yields the keys of the tables in which a function looks its parameter up.

    Each key has whether the entry says something about the field, where the function asks for it.
    """
    takes_part = any(called_name(call) == FIELD_OF_ENTRY for call in _calls(function))
    for node in ast.walk(function):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        resolved = scope.resolve(node.value.id)
        if ast.unparse(node.slice) != _parameter(function) or resolved is None:
            continue
        if not isinstance(resolved[1], ast.Dict):
            continue
        for key, entry in zip(resolved[1].keys, resolved[1].values, strict=True):
            has_field = not isinstance(entry, ast.Call) or keyword_of(entry, field) is not None
            if isinstance(key, ast.Constant):
                yield str(key.value), has_field or not takes_part


def _calls(function: Function) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield node


def _parameter(function: Function) -> str:
    """Returns the name of the value that a validator reads, after `cls`."""
    names = [argument.arg for argument in function.args.args if argument.arg != "cls"]
    return names[0] if names else ""
