"""The values of expressions, as far as they can be read without running anything."""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from scripts.version_diff.fact import UNKNOWN
from scripts.version_diff.package import Module, Package

MAX_DEPTH = 25
"""Most steps from a name to its value; more are a circle."""
MAX_RANGE = 1000
FIELD_CALLS = ("Field", "field", "PydanticField", "PrivateAttr")
COPYING_CALLS = ("get_args", "list", "tuple", "sorted", "set", "frozenset")
"""Functions whose result has the items of their argument."""
CALCULATIONS: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}
CONVERSIONS: dict[str, Callable[[Any], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
}
EMPTY_CALLS: dict[str, object] = {"list": [], "dict": {}, "set": [], "tuple": ()}


class CannotReadError(Exception):
    """The value of an expression is known only when vLLM runs."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Names that an expression can use: those of a module, and those of a function in it."""

    package: Package
    module: Module
    local_names: Mapping[str, ast.AST] = field(default_factory=dict)

    def inside(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, line: int | None = None
    ) -> "Scope":
        """Returns the scope of a function: names that are assigned once have a value.

        The name of a loop stands for the loop, whose values are not evaluated. With a line, names
        have the last value that is assigned before it.
        """
        values: dict[str, list[ast.AST]] = {}
        for node in ast.walk(function):
            if line is not None and _line_of(node) >= line:
                continue
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                values.setdefault(node.target.id, []).append(node.value or node)
            elif isinstance(node, ast.For):
                for target in ast.walk(node.target):
                    if isinstance(target, ast.Name):
                        values.setdefault(target.id, []).append(node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    values.setdefault(alias.asname or alias.name, []).append(node)
        local_names = {
            name: max(nodes, key=_line_of)
            for name, nodes in values.items()
            if len(nodes) == 1 or line is not None
        }
        return replace(self, local_names={**self.local_names, **local_names})

    def with_name(self, name: str, value: ast.AST) -> "Scope":
        """Returns the scope with a further name."""
        return replace(self, local_names={**self.local_names, name: value})

    def resolve(self, name: str, depth: int = 0) -> tuple["Scope", ast.AST] | None:
        """Returns what a name stands for, and the scope of that; None if vLLM does not define it.

        Imports are followed to the definition.
        """
        node = self.local_names.get(name) or self.module.names.get(name)
        if depth > MAX_DEPTH:
            return None
        if node is None:
            imported = (
                self._imported(statement, name, depth) for statement in self.module.star_imports
            )
            return next(filter(None, imported), None)
        if isinstance(node, ast.ImportFrom):
            return self._imported(node, name, depth)
        if isinstance(node, ast.Import):
            return None
        if isinstance(node, ast.Name) and node.id != name:
            return self.resolve(node.id, depth + 1)
        return self, node

    def _imported(
        self, node: ast.ImportFrom, name: str, depth: int
    ) -> tuple["Scope", ast.AST] | None:
        """Returns what a name stands for in the module that an import names."""
        originals = {alias.asname or alias.name: alias.name for alias in node.names}
        source = self.package.module_named(self.module.imported_module(node))
        if source is None:
            return None
        return Scope(self.package, source).resolve(originals.get(name, name), depth + 1)

    def class_at(self, node: ast.AST | None) -> tuple["Scope", ast.ClassDef] | None:
        """Returns the class that an expression names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.Name(node.value)
        if not isinstance(node, ast.Name):
            return None
        resolved = self.resolve(node.id)
        if resolved is None or not isinstance(resolved[1], ast.ClassDef):
            return None
        return resolved[0], resolved[1]


def _line_of(node: ast.AST) -> int:
    """Returns the line of a statement or an expression."""
    line: int = getattr(node, "lineno", 0)
    return line


@dataclass(frozen=True, slots=True)
class ClassField:
    """A field of a class: its annotation and value, and the scope of both."""

    name: str
    scope: Scope
    annotation: ast.expr | None
    value: ast.expr | None

    def keyword(self, name: str) -> ast.expr | None:
        """Returns an argument of the call of `Field` or `field` that is the value."""
        if isinstance(self.value, ast.Call) and called_name(self.value) in FIELD_CALLS:
            return keyword_of(self.value, name)
        return None

    def default(self, depth: int = 0) -> object:
        """Returns the default.

        Raises:
            CannotReadError: There is none, or only vLLM knows it.
        """
        value = self.value
        if value is None:
            raise CannotReadError
        if isinstance(value, ast.Call) and called_name(value) in FIELD_CALLS:
            factory = self.keyword("default_factory")
            if factory is not None:
                return _made_by(self.scope, factory, depth)
            value = self.keyword("default")
            if value is None and isinstance(self.value, ast.Call) and self.value.args:
                value = self.value.args[0]
        if value is None or (isinstance(value, ast.Constant) and value.value is ...):
            raise CannotReadError
        return evaluate(self.scope, value, depth + 1)

    def default_text(self) -> str:
        """Returns the default as a text."""
        if self.is_required:
            return "required"
        try:
            return repr(self.default())
        except CannotReadError:
            factory = self.keyword("default_factory")
            if factory is not None and self.scope.class_at(factory) is not None:
                return f"{ast.unparse(factory)}()"
            return f"{UNKNOWN}: {ast.unparse(factory or self.value or ast.Constant(None))}"

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        if self.value is None:
            return True
        if not isinstance(self.value, ast.Call) or called_name(self.value) not in FIELD_CALLS:
            return False
        default = self.keyword("default")
        if default is None and self.value.args:
            default = self.value.args[0]
        if default is None:
            return self.keyword("default_factory") is None
        return isinstance(default, ast.Constant) and default.value is ...


def fields_of(scope: Scope, node: ast.ClassDef, depth: int = 0) -> dict[str, ClassField]:
    """Returns the annotated fields of a class and of its bases in vLLM."""
    fields: dict[str, ClassField] = {}
    if depth > MAX_DEPTH:
        return fields
    for base in reversed(node.bases):
        resolved = scope.class_at(base)
        if resolved is not None:
            fields.update(fields_of(resolved[0], resolved[1], depth + 1))
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            if "ClassVar" not in ast.unparse(statement.annotation):
                fields[name] = ClassField(
                    name, scope, annotation=statement.annotation, value=statement.value
                )
    return fields


def called_name(call: ast.Call) -> str:
    """Returns the name of the function or method that a call names."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return ""


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Returns an argument that is passed by name."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def evaluate(scope: Scope, node: ast.AST, depth: int = 0) -> object:
    """Returns the value of an expression.

    Raises:
        CannotReadError: Only vLLM knows it.
    """
    read = _readers().get(type(node))
    if read is None or depth > MAX_DEPTH:
        raise CannotReadError
    return read(scope, node, depth)


def texts_in(scope: Scope, node: ast.AST) -> list[str]:
    """Returns the items of a sequence, or a single value, as texts.

    Raises:
        CannotReadError: Only vLLM knows the value.
    """
    value = evaluate(scope, node)
    if isinstance(value, list | tuple | dict):
        return [str(item) for item in value]
    return [str(value)]


def list_text(scope: Scope, node: ast.expr) -> str:
    """Returns the items of a sequence as one text; the source if only vLLM knows them."""
    try:
        return ", ".join(texts_in(scope, node))
    except CannotReadError:
        return f"{UNKNOWN}: {ast.unparse(node)}"


def type_arguments(node: ast.Subscript) -> list[ast.expr]:
    """Returns what is in the brackets of a type."""
    if isinstance(node.slice, ast.Tuple):
        return node.slice.elts
    return [node.slice]


def value_text(scope: Scope, node: ast.expr) -> str:
    """Returns the value of an expression as a text; its source if only vLLM knows the value."""
    try:
        return repr(evaluate(scope, node))
    except CannotReadError:
        return f"{UNKNOWN}: {ast.unparse(node)}"


def _constant(scope: Scope, node: ast.Constant, depth: int) -> object:
    return node.value


def _list(scope: Scope, node: ast.List | ast.Set, depth: int) -> list[object]:
    return list(_items(scope, node.elts, depth))


def _tuple(scope: Scope, node: ast.Tuple, depth: int) -> tuple[object, ...]:
    return tuple(_items(scope, node.elts, depth))


def _items(scope: Scope, elements: Sequence[ast.expr], depth: int) -> Iterator[object]:
    for element in elements:
        if isinstance(element, ast.Starred):
            yield from _sequence(scope, element.value, depth)
        else:
            yield evaluate(scope, element, depth + 1)


def _sequence(scope: Scope, node: ast.expr, depth: int) -> Sequence[object]:
    value = evaluate(scope, node, depth + 1)
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list | tuple):
        return value
    raise CannotReadError


def _dict(scope: Scope, node: ast.Dict, depth: int) -> dict[object, object]:
    entries: dict[object, object] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        content = evaluate(scope, value, depth + 1)
        if key is not None:
            name = evaluate(scope, key, depth + 1)
            if not isinstance(name, str | int | float | None):
                raise CannotReadError
            entries[name] = content
        elif isinstance(content, dict):
            entries.update(content)
        else:
            raise CannotReadError
    return entries


def _name(scope: Scope, node: ast.Name, depth: int) -> object:
    resolved = scope.resolve(node.id)
    if resolved is None or resolved[1] is node:
        raise CannotReadError
    return evaluate(*resolved, depth + 1)


def _subscript(scope: Scope, node: ast.Subscript, depth: int) -> list[object]:
    """Returns a part of a list, or the values of a `Literal`, also of those that it contains."""
    if isinstance(node.slice, ast.Slice):
        return _slice(scope, node.value, node.slice, depth)
    if not isinstance(node.value, ast.Name) or node.value.id != "Literal":
        raise CannotReadError
    values: list[object] = []
    for argument in type_arguments(node):
        value = evaluate(scope, argument, depth + 1)
        if isinstance(value, list):
            values += value
        else:
            values.append(value)
    return list(dict.fromkeys(values))


def _slice(scope: Scope, node: ast.expr, part: ast.Slice, depth: int) -> list[object]:
    """Returns the items of a sequence from a place to another one."""
    bounds: list[int | None] = []
    for expression in (part.lower, part.upper):
        bound = None
        if expression is not None:
            bound = evaluate(scope, expression, depth + 1)
        if part.step is not None or not isinstance(bound, int | None):
            raise CannotReadError
        bounds.append(bound)
    return list(_sequence(scope, node, depth))[bounds[0] : bounds[1]]


def _comprehension(scope: Scope, node: ast.ListComp | ast.GeneratorExp, depth: int) -> list[object]:
    """Returns the values of `[member.value for member in Members]`."""
    generator = node.generators[0]
    if len(node.generators) > 1 or generator.ifs:
        raise CannotReadError
    if isinstance(generator.iter, ast.Call) and called_name(generator.iter) == "range":
        return _of_range(scope, node, generator.iter, depth)
    resolved = scope.class_at(generator.iter)
    is_value = isinstance(node.elt, ast.Attribute) and node.elt.attr == "value"
    if resolved is None or not is_value:
        raise CannotReadError
    class_scope, class_node = resolved
    return [
        evaluate(class_scope, statement.value, depth + 1)
        for statement in class_node.body
        if isinstance(statement, ast.Assign)
    ]


def _of_range(
    scope: Scope, node: ast.ListComp | ast.GeneratorExp, call: ast.Call, depth: int
) -> list[object]:
    """Returns the values of `[2 * i for i in range(9)]`."""
    bounds = []
    for argument in call.args:
        bound = evaluate(scope, argument, depth + 1)
        if not isinstance(bound, int) or abs(bound) > MAX_RANGE:
            raise CannotReadError
        bounds.append(bound)
    name = ast.unparse(node.generators[0].target)
    return [
        evaluate(scope.with_name(name, ast.Constant(number)), node.elt, depth + 1)
        for number in range(*bounds)
    ]


def _member(scope: Scope, node: ast.Attribute, depth: int) -> object:
    """Returns the default of a field of a class, or the value of a member of an enum."""
    if node.attr == "value" and isinstance(node.value, ast.Attribute):
        return evaluate(scope, node.value, depth + 1)
    resolved = scope.class_at(node.value)
    if resolved is None:
        raise CannotReadError
    class_scope, class_node = resolved
    fields = fields_of(class_scope, class_node)
    if node.attr in fields:
        return fields[node.attr].default(depth + 1)
    for statement in class_node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == node.attr:
            return evaluate(class_scope, statement.value, depth + 1)
    raise CannotReadError


def _negated(scope: Scope, node: ast.UnaryOp, depth: int) -> object:
    value = evaluate(scope, node.operand, depth + 1)
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    if isinstance(node.op, ast.Not):
        return not value
    raise CannotReadError


def _calculated(scope: Scope, node: ast.BinOp, depth: int) -> object:
    left = evaluate(scope, node.left, depth + 1)
    right = evaluate(scope, node.right, depth + 1)
    if isinstance(node.op, ast.Add):
        if isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(left, str) and isinstance(right, str):
            return left + right
    calculate = CALCULATIONS.get(type(node.op))
    are_numbers = isinstance(left, int | float) and isinstance(right, int | float)
    is_huge = isinstance(node.op, ast.Pow | ast.LShift) and right not in range(64)
    if calculate is None or not are_numbers or is_huge:
        raise CannotReadError
    return calculate(left, right)


def _returned(scope: Scope, call: ast.Call, depth: int) -> object:
    """Returns the result of the few functions that vLLM's declarations call."""
    name = called_name(call)
    if name in FIELD_CALLS:
        return ClassField(name="", scope=scope, annotation=None, value=call).default(depth + 1)
    if name == "keys" and isinstance(call.func, ast.Attribute):
        return list(_sequence(scope, call.func.value, depth))
    if not call.args:
        if name in EMPTY_CALLS and not call.keywords:
            return EMPTY_CALLS[name]
        raise CannotReadError
    if name == "cast":
        return evaluate(scope, call.args[-1], depth + 1)
    if name == "get_field":
        member = ast.Attribute(call.args[0], value_text(scope, call.args[-1]).strip("'"))
        return evaluate(scope, member, depth + 1)
    if name in COPYING_CALLS:
        return list(_sequence(scope, call.args[0], depth))
    return _converted(name, evaluate(scope, call.args[0], depth + 1))


def _converted(name: str, value: object) -> object:
    if name not in CONVERSIONS or not isinstance(value, str | int | float):
        raise CannotReadError
    try:
        return CONVERSIONS[name](value)
    except ValueError:
        raise CannotReadError from None


def _made_by(scope: Scope, factory: ast.expr, depth: int) -> object:
    """Returns what a default factory returns."""
    if isinstance(factory, ast.Lambda):
        return evaluate(scope, factory.body, depth + 1)
    if isinstance(factory, ast.Name) and factory.id in EMPTY_CALLS:
        return EMPTY_CALLS[factory.id]
    raise CannotReadError


@cache
def _readers() -> dict[type[ast.AST], Callable[[Scope, Any, int], object]]:
    """Returns the functions that read expressions by their types."""
    return {
        ast.Constant: _constant,
        ast.List: _list,
        ast.Set: _list,
        ast.Tuple: _tuple,
        ast.Dict: _dict,
        ast.Name: _name,
        ast.Subscript: _subscript,
        ast.ListComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.Attribute: _member,
        ast.UnaryOp: _negated,
        ast.BinOp: _calculated,
        ast.Call: _returned,
    }
