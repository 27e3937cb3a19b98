"""Templates of scripts: Jinja's language without unbounded work. Start reading at `Template`.

A template reads values, compares and computes them, and applies filters. There are no loops,
macros, imports, methods or powers, and nothing that repeats a text. `template_limits` explains the
limits, and `template_environment` has the operators, filters and functions.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import jinja2
from jinja2 import TemplateError, nodes

from app.extensions.scripts.rules import RuleFailureError, ScriptError
from app.extensions.scripts.template_environment import OperationLimiter, ScriptEnvironment
from app.extensions.scripts.template_limits import (
    BUDGET_KEY,
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NODES,
    MAX_SCRIPT_NODES,
    MAX_TOKENS,
    RENDER_WORK,
    Budget,
    Values,
    size_of,
    too_long,
)

NAMES = frozenset(
    (
        "match",
        "message",
        "user",
        "tool_result",
        "model",
        "api",
        "turn",
        "count",
        "now",
        "unix",
        "header",
    )
)
"""Names that a template can use (docs/scripts.md)."""
FUNCTIONS = frozenset(("random", "choose", "hex", "header"))
"""Names that a template can only call: the text of a function would show its address."""


class TemplateCompiler:
    """Compiles the templates of one script, which share a limit on their size."""

    def __init__(self) -> None:
        self._environment = ScriptEnvironment()
        self.nodes = 0
        """Nodes of all templates so far."""

    def compile(self, source: str, groups: frozenset[str] | None) -> tuple[jinja2.Template, bool]:
        """Returns the program of `source`, and whether `source` is a single expression.

        The program of an expression leaves its value in the variable `result`.

        Raises:
            TemplateError: The template is invalid, or too large. Python's compiler may raise any
                other error.
        """
        environment = self._environment
        tokens = sum(1 for _ in islice(environment.lex(source), MAX_TOKENS + 1))
        if tokens > MAX_TOKENS:
            raise TemplateError(f"must not have more than {MAX_TOKENS} tokens")
        tree = environment.parse(source)
        self.nodes += _count_nodes(tree)
        if self.nodes > MAX_SCRIPT_NODES:
            raise TemplateError(f"the templates have more than {MAX_SCRIPT_NODES} nodes in total")
        _check_nodes(tree, groups)
        tree = OperationLimiter().visit(tree)
        is_expression = False
        output = tree.body[0] if len(tree.body) == 1 else None
        if isinstance(output, nodes.Output) and len(output.nodes) == 1:
            is_expression = source.startswith("{{") and source.endswith("}}")
        if is_expression and isinstance(output, nodes.Output):
            result = nodes.Assign(nodes.Name("result", "store"), output.nodes[0], lineno=1)
            tree = nodes.Template([result], lineno=1)
        tree.set_environment(environment)
        return environment.from_string(tree), is_expression


class Template:
    """A compiled text of a script."""

    def __init__(
        self,
        source: str,
        groups: frozenset[str] | None = None,
        compiler: TemplateCompiler | None = None,
    ) -> None:
        """`groups` are the groups of `match`; None allows any group.

        Raises:
            ScriptError: The template is invalid.
        """
        self.source = source
        self._program: jinja2.Template | None = None
        self._is_expression = False
        if len(source) > MAX_CHARACTERS:
            raise ScriptError(f"the text is too long: it has {len(source)} characters")
        if any("\ud800" <= character <= "\udfff" for character in source):
            raise ScriptError(f"the text {source[:60]!a} contains an unpaired surrogate")
        if not any(mark in source for mark in ("{{", "{%", "{#")):
            return
        compiler = compiler or TemplateCompiler()
        try:
            self._program, self._is_expression = compiler.compile(source, groups)
        except (RecursionError, MemoryError):
            raise ScriptError(f"template {source[:60]!r} is nested too deeply") from None
        except (TemplateError, SyntaxError, ValueError, OverflowError) as error:
            # ValueError: for example, a number of 5,000 digits.
            reason = getattr(error, "message", "") or error
            raise ScriptError(f"template {source[:60]!r}: {reason}") from None

    @property
    def is_constant(self) -> bool:
        """True for a text without template syntax."""
        return self._program is None

    def text(self, values: Values) -> str:
        """Renders the text, or raises `RuleFailureError` when rendering fails."""
        if self._program is None:
            return self.source
        return str(self._render(values, _to_text))

    def value(self, values: Values) -> object:
        """Returns the value of a single expression, and the text of all other templates."""
        if not self._is_expression:
            return self.text(values)
        return self._render(values, _to_json)

    def _render(self, values: Values, convert: Callable[[object, Budget], object]) -> object:
        """Returns the converted value of an expression, or the converted text of a template."""
        program = self._program
        assert program is not None
        budget = values.get(BUDGET_KEY)
        if not isinstance(budget, Budget):
            budget = Budget()
        context = program.new_context({**values, BUDGET_KEY: budget})
        try:
            budget.spend(RENDER_WORK)
            text = "".join(_limit_length(program.root_render_func(context)))
            value = context.vars["result"] if self._is_expression else text
            return convert(value, budget)
        except Exception as error:  # a template is a program, and may fail in any way
            raise RuleFailureError(f"template {self.source[:60]!r} failed: {error}") from None


def _to_text(value: object, budget: Budget) -> str:
    """Returns the text of a value, or raises `TemplateError` if it is too long."""
    if size_of(value) > MAX_CHARACTERS:
        raise too_long()
    text = str(value)
    if len(text) > MAX_CHARACTERS:
        raise too_long()
    return text


def _count_nodes(tree: nodes.Template) -> int:
    """Returns the number of nodes, or raises `TemplateError` for a tree that is too large."""
    count = 0
    pending: list[tuple[nodes.Node, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MAX_NODES:
            raise TemplateError(
                f"must not have more than {MAX_NODES} nodes; split the text, or use fewer "
                "expressions"
            )
        if depth > MAX_DEPTH:
            raise TemplateError(f"must not be nested more than {MAX_DEPTH} levels deep")
        pending.extend((child, depth + 1) for child in node.iter_child_nodes())
    return count


def _check_nodes(tree: nodes.Template, groups: frozenset[str] | None) -> None:
    """Raises `TemplateError` for a statement, call, group or name that scripts do not allow."""
    callees: set[nodes.Name] = set()
    names: list[nodes.Name] = []
    for node in tree.find_all(nodes.Node):
        _check_node(node)
        if isinstance(node, nodes.Call):
            callees.add(_callee(node))
        elif isinstance(node, nodes.Name):
            names.append(node)
        elif isinstance(node, nodes.Getattr | nodes.Getitem):
            _check_group(node, groups)
    allowed_names = NAMES | FUNCTIONS
    unknown_names = {node.name for node in names} - allowed_names
    if unknown_names:
        raise TemplateError(
            f"unknown name {min(unknown_names)!r}; "
            f"known names are {', '.join(sorted(allowed_names))}"
        )
    for node in names:
        if node.name in FUNCTIONS and node not in callees:
            raise TemplateError(
                f"{node.name} (line {node.lineno}) is a function; write {node.name}(...)"
            )


def _check_node(node: nodes.Node) -> None:
    is_allowed = isinstance(node, nodes.Output | nodes.If)
    if isinstance(node, nodes.Stmt | nodes.Pow) and not is_allowed:
        raise TemplateError(
            f"{type(node).__name__} is not supported in a script (line {node.lineno})"
        )
    for field in ("dyn_args", "dyn_kwargs"):
        if getattr(node, field, None) is not None:
            raise TemplateError(
                f"unpacking arguments with * is not supported in a script (line {node.lineno})"
            )


def _callee(node: nodes.Call) -> nodes.Name:
    if not isinstance(node.node, nodes.Name) or node.node.name not in FUNCTIONS:
        functions = ", ".join(sorted(FUNCTIONS))
        raise TemplateError(f"only {functions} can be called (line {node.lineno})")
    return node.node


def _check_group(node: nodes.Getattr | nodes.Getitem, groups: frozenset[str] | None) -> None:
    """Raises `TemplateError` for a member of `match` that is not in `groups`, unless it is None."""
    if groups is None or not isinstance(node.node, nodes.Name) or node.node.name != "match":
        return
    group = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
    if group is not None and str(group) not in groups:
        hint = "the rule has no regex"
        if groups:
            hint = f"there are {', '.join(sorted(groups))}"
        raise TemplateError(f"the match has no group {str(group)!r}; {hint}")


def _limit_length(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise too_long()
        yield piece


def _to_json(value: object, budget: Budget) -> object:
    """Converts a value to a JSON type, or raises `TemplateError` if JSON cannot represent it."""
    size = size_of(value)
    budget.spend(size)
    if size > MAX_CHARACTERS:
        raise too_long()
    if not isinstance(value, list | dict):
        return _to_json_scalar(value)
    pending: list[object] = [value]
    while pending:
        member = pending.pop()
        if isinstance(member, dict):
            pending.extend(member.values())
            if not all(isinstance(key, str | int | float | bool | None) for key in member):
                raise TemplateError("an object key must be a string or a number")
        elif isinstance(member, list | tuple):
            pending.extend(member)
        else:
            _to_json_scalar(member)
    return value


def _to_json_scalar(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateError(f"JSON cannot represent {value}")
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # an undefined value raises its error
