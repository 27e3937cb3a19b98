"""Templates of scripts: Jinja's language without unbounded work. Start reading at `Template`.

A template reads values, compares and computes them, and applies filters. There are no loops,
macros, imports, methods or powers, and nothing that repeats a text. Rules can be set while a server
runs, and their templates are rendered in the event loop, so three limits hold:

* compiling: a source has at most `MAX_NODES` nodes, nested at most `MAX_DEPTH` deep. Python's
  compiler is not
  interruptible: it takes about 20 us a node, and much longer for deeply nested code.
* a single operation: no value has more than `MAX_CHARACTERS` characters, and no integer operand
  more than
  `MAX_BITS` bits.
* rendering: the templates of one answer share a `Budget`, which also lets other requests run in
  between.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import islice
from random import Random
from typing import Any

import jinja2
from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from app.serving.scripts.rules import ScriptError, ScriptFailure

MAX_CHARACTERS = 1 << 18
"""Longest text that a template, or an operation in it, makes, in characters."""
MAX_NODES = 500
"""Most nodes in the syntax tree of a template."""
MAX_DEPTH = 50
"""Most levels of that tree.

Python refuses 200 nested parentheses, and a level needs up to three.
"""
MAX_TOKENS = 8 * MAX_NODES
"""Most tokens that are parsed. A node has up to three tokens, and blanks count as tokens, too."""
MAX_SCRIPT_NODES = 100_000
"""Most nodes of all templates of a script; compiling them takes a few seconds of a thread."""
MAX_WORK = 16 * MAX_CHARACTERS
"""Most characters that the templates of one answer read, each operation counted on its own."""
OPERATION_WORK = 100
"""Characters that are reckoned for an operation in addition to its operands."""
RENDER_WORK = 1_000
"""Characters that are reckoned for rendering a template."""
MAX_BITS = 1024
MAX_DIGITS = 20
MAX_HEX_DIGITS = 64
MAX_STRIPPED = 100
"""Most characters that the filter `trim` looks for: stripping compares each with each."""
MAX_DATE_FORMAT = 200
"""Longest format of the filter `date`, in characters: a directive can yield 24 characters."""
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
"""Names that a template can call, and cannot use otherwise:

the text of a function has its address.
"""
FILTERS = (
    *("upper", "lower", "capitalize", "title", "int", "float", "length", "first", "last"),
    *("default", "string", "abs"),
)
"""Filters of Jinja's own; `ScriptEnvironment` adds others."""
TESTS = ("defined", "none", "string", "number")
CONCATENATE = "~"
CHARGE = "charge operand"
"""Names of internal filters, which no template can spell."""
BUDGET = "render budget"
"""Key of the `Budget` among the values; no template can spell the name."""
BINARY_OPERATORS: Mapping[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_WIDE = re.compile(r"%[^A-Za-z%]")
Values = Mapping[str, object]


class Budget:
    """Work that the templates of one answer may still do, in characters.

    `breathe` is called before each operation, and may let other requests run.
    """

    __slots__ = ("_breathe", "_left")

    def __init__(
        self, breathe: Callable[[], None] = lambda: None, characters: int = MAX_WORK
    ) -> None:
        self._breathe = breathe
        self._left = characters

    def spend(self, characters: int) -> None:
        """Raises TemplateError when the work of this and earlier operations is too much."""
        self._left -= characters
        if self._left < 0:
            raise TemplateError(
                f"the rule's templates work through more than {MAX_WORK} characters"
            )
        self._breathe()


class TemplateCompiler:
    """Compiles the templates of one script, which share a limit on their size."""

    def __init__(self) -> None:
        self._environment = ScriptEnvironment()
        self.nodes = 0
        """Nodes of all templates so far."""

    def compile(self, source: str, groups: frozenset[str] | None) -> tuple[jinja2.Template, bool]:
        """Returns the program of `source`, and whether `source` is a single expression.

        The program of an expression leaves its value in the variable `result`.
        Raises TemplateError, and any error of Python's compiler.
        """
        environment = self._environment
        tokens = sum(1 for _ in islice(environment.lex(source), MAX_TOKENS + 1))
        if tokens > MAX_TOKENS:
            raise TemplateError(f"has more than {MAX_TOKENS} tokens")
        tree = environment.parse(source)
        self.nodes += _count_nodes(tree)
        if self.nodes > MAX_SCRIPT_NODES:
            raise TemplateError(f"the templates have more than {MAX_SCRIPT_NODES} nodes together")
        _check(tree, groups)
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
    """A compiled text of a script. ScriptError for an invalid template."""

    def __init__(
        self,
        source: str,
        groups: frozenset[str] | None = None,
        compiler: TemplateCompiler | None = None,
    ) -> None:
        """`groups` are the groups of `match`; None allows any group."""
        self.source = source
        self._program: jinja2.Template | None = None
        self._is_expression = False
        if len(source) > MAX_CHARACTERS:
            raise ScriptError(f"a text of {len(source)} characters is too long")
        if any("\ud800" <= character <= "\udfff" for character in source):
            raise ScriptError(f"the text {source[:60]!a} has half of a character (a surrogate)")
        if not any(mark in source for mark in ("{{", "{%", "{#")):
            return
        compiler = compiler or TemplateCompiler()
        try:
            self._program, self._is_expression = compiler.compile(source, groups)
        except (RecursionError, MemoryError):
            raise ScriptError(f"template {source[:60]!r}: is nested too deeply") from None
        except (TemplateError, SyntaxError, ValueError, OverflowError) as error:
            # ValueError: for example, a number of 5,000 digits.
            reason = getattr(error, "message", "") or error
            raise ScriptError(f"template {source[:60]!r}: {reason}") from None

    @property
    def is_constant(self) -> bool:
        """True for a text without template syntax."""
        return self._program is None

    def text(self, values: Values) -> str:
        """Renders the text. ScriptFailure when rendering fails."""
        if self._program is None:
            return self.source
        return str(self._render(values, _text_of))

    def value(self, values: Values) -> object:
        """Returns the value of a template of one expression, and the text of other templates."""
        if not self._is_expression:
            return self.text(values)
        return self._render(values, _json_value)

    def _render(self, values: Values, convert: Callable[[object, Budget], object]) -> object:
        """Returns the converted value of an expression, or the converted text of another template."""
        program = self._program
        assert program is not None
        budget = values.get(BUDGET)
        if not isinstance(budget, Budget):
            budget = Budget()
        context = program.new_context({**values, BUDGET: budget})
        try:
            budget.spend(RENDER_WORK)
            text = "".join(_limited(program.root_render_func(context)))
            return convert(context.vars["result"] if self._is_expression else text, budget)
        except Exception as error:  # a template is a program, and may fail in any way
            raise ScriptFailure(f"its template {self.source[:60]!r} failed: {error}") from None


def random_functions(rng: Random) -> dict[str, object]:
    """Functions of templates that draw from one stream."""

    def draw_hex(digits: int = 8) -> str:
        digits = max(1, min(digits, MAX_HEX_DIGITS))
        return f"{rng.getrandbits(4 * digits):0{digits}x}"

    return {
        "random": lambda least=0, most=100: rng.randint(least, most),
        "choose": lambda *items: rng.choice(items),
        "hex": draw_hex,
    }


class ScriptEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded operators and filters. Values have members, but no attributes."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self) -> None:
        # Folding constants would evaluate parts of a template while it compiles, again at each
        # level.
        super().__init__(
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
            optimized=False,
            finalize=_charge_output,
        )
        functions: dict[str, Callable[..., object]] = {name: self.filters[name] for name in FILTERS}
        for name in ("first", "last"):
            functions[name] = partial(self.filters[name], self)
        functions |= {
            "replace": _replace,
            "round": _round,
            "trim": _trim,
            "json": _json,
            "date": _date,
            "truncate": lambda text, most=100: str(text)[:most],
            CONCATENATE: lambda values: "".join(map(str, values)),
            CHARGE: lambda value: value,
        }
        self.filters = {name: _bounded(function) for name, function in functions.items()}
        self.tests = {name: self.tests[name] for name in TESTS}
        self.tests["odd"] = lambda number: _number(number) % 2 == 1
        self.tests["even"] = lambda number: _number(number) % 2 == 0
        self.globals = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns a member of a mapping.

        Other values have no attributes: those would be methods.
        """
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        for operand in (left, right):
            if isinstance(operand, Undefined):
                str(operand)  # raises the error that names the value
        size = size_of(left) + size_of(right)
        _budget_of(context).spend(OPERATION_WORK + size)
        if operator == "+" and any(
            isinstance(left, kind) and isinstance(right, kind) for kind in (str, list)
        ):
            if size > MAX_CHARACTERS:
                raise TemplateError(f"+ makes more than {MAX_CHARACTERS} characters")
            return left + right
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TemplateError(f"{operator} is for numbers")
        for operand in (left, right):
            if isinstance(operand, int) and operand.bit_length() > MAX_BITS:
                raise TemplateError(f"{operator} is for numbers of up to {MAX_BITS} bits")
        return BINARY_OPERATORS[operator](left, right)


class OperationLimiter(NodeTransformer):
    """Replaces operations that Jinja compiles to plain Python by bounded ones.

    `~` becomes a filter, and the operands of comparisons (`x in y` searches a text) pass through
    one.
    """

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), CONCATENATE)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, CHARGE)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, CHARGE)
        return node


def size_of(value: object) -> int:
    """Returns the characters in the text of a value, about; stops at `MAX_CHARACTERS` for a
    container.

    Each member of a container counts as one at least, so the walk is bounded.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    if not isinstance(value, list | tuple | dict):
        return 1
    size = 0
    waiting: list[object] = [value]
    while waiting and size <= MAX_CHARACTERS:
        member = waiting.pop()
        if isinstance(member, dict):
            size += 1 + len(member)
            waiting.extend(member)
            waiting.extend(member.values())
        elif isinstance(member, list | tuple):
            size += 1 + len(member)
            waiting.extend(member)
        else:
            size += size_of(member)
    return size


def _text_of(value: object, budget: Budget) -> str:
    """Returns the text of a value. TemplateError for a text that is too long."""
    if size_of(value) > MAX_CHARACTERS:
        raise _too_long()
    text = str(value)
    if len(text) > MAX_CHARACTERS:
        raise _too_long()
    return text


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _count_nodes(tree: nodes.Template) -> int:
    """Returns the number of nodes. TemplateError for a tree that is too large or too deep."""
    count = 0
    waiting: list[tuple[nodes.Node, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise TemplateError(
                f"has more than {MAX_NODES} nodes; split the text, or use fewer expressions"
            )
        if depth > MAX_DEPTH:
            raise TemplateError(f"is nested too deeply: more than {MAX_DEPTH} levels")
        waiting.extend((child, depth + 1) for child in node.iter_child_nodes())
    return count


def _check(tree: nodes.Template, groups: frozenset[str] | None) -> None:
    """Raises TemplateError for a statement, call, group or name that scripts do not allow."""
    callees: set[nodes.Name] = set()
    names: list[nodes.Name] = []
    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Stmt | nodes.Pow) and not isinstance(
            node, nodes.Output | nodes.If
        ):
            raise TemplateError(
                f"{type(node).__name__} (line {node.lineno}) is not possible in a script"
            )
        if (
            getattr(node, "dyn_args", None) is not None
            or getattr(node, "dyn_kwargs", None) is not None
        ):
            raise TemplateError(
                f"arguments with * (line {node.lineno}) are not possible in a script"
            )
        if isinstance(node, nodes.Call):
            if not isinstance(node.node, nodes.Name) or node.node.name not in FUNCTIONS:
                functions = ", ".join(sorted(FUNCTIONS))
                raise TemplateError(f"only {functions} can be called (line {node.lineno})")
            callees.add(node.node)
        elif isinstance(node, nodes.Name):
            names.append(node)
        elif isinstance(node, nodes.Getattr | nodes.Getitem):
            _check_group(node, groups)
    known = NAMES | FUNCTIONS
    unknown = {node.name for node in names} - known
    if unknown:
        raise TemplateError(f"unknown name {min(unknown)!r}; there are {', '.join(sorted(known))}")
    for node in names:
        if node.name in FUNCTIONS and node not in callees:
            raise TemplateError(
                f"{node.name} (line {node.lineno}) is a function: write {node.name}(...)"
            )


def _check_group(node: nodes.Getattr | nodes.Getitem, groups: frozenset[str] | None) -> None:
    """Raises TemplateError for a member of `match` that is none of the `groups`; None allows any
    group.
    """
    if groups is None or not isinstance(node.node, nodes.Name) or node.node.name != "match":
        return
    group = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
    if group is not None and str(group) not in groups:
        known = f"there are {', '.join(sorted(groups))}" if groups else "the rule has no regex"
        raise TemplateError(f"there is no group {str(group)!r} in match; {known}")


def _budget_of(context: Context) -> Budget:
    budget = context.parent[BUDGET]
    assert isinstance(budget, Budget)
    return budget


def _bounded(function: Callable[..., object]) -> Callable[..., object]:
    """Returns a filter that charges its operands, and refuses operands and results that are too
    long.
    """

    @pass_context
    @wraps(function)
    def apply(context: Context, *operands: object, **named: object) -> object:
        sizes = [size_of(operand) for operand in (*operands, *named.values())]
        _budget_of(context).spend(OPERATION_WORK + sum(sizes))
        if sum(sizes) > MAX_CHARACTERS:
            raise _too_long()
        result = function(*operands, **named)
        if isinstance(result, str) and len(result) > MAX_CHARACTERS:
            raise _too_long()
        return result

    return apply


@pass_context
def _charge_output(context: Context, value: object) -> object:
    """Charges a value that is about to become text."""
    size = size_of(value)
    _budget_of(context).spend(OPERATION_WORK + size)
    if size > MAX_CHARACTERS:
        raise _too_long()
    return value


def _too_long() -> TemplateError:
    return TemplateError(f"the text has more than {MAX_CHARACTERS} characters")


def _limited(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise _too_long()
        yield piece


def _json_value(value: object, budget: Budget) -> object:
    """Converts a value to a JSON type. TemplateError for a value that JSON cannot express."""
    size = size_of(value)
    budget.spend(size)
    if size > MAX_CHARACTERS:
        raise _too_long()
    if not isinstance(value, list | dict):
        return _json_scalar(value)
    waiting: list[object] = [value]
    while waiting:
        member = waiting.pop()
        if isinstance(member, dict):
            waiting.extend(member.values())
            if not all(isinstance(key, str | int | float | bool | None) for key in member):
                raise TemplateError("a key of an object must be a text or a number")
        elif isinstance(member, list | tuple):
            waiting.extend(member)
        else:
            _json_scalar(member)
    return value


def _json_scalar(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateError(f"{value} is no number of JSON")
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # an undefined value raises its error


def _number(value: object) -> float:
    """TemplateError for a value that is not a number: `%` would format a text."""
    if not isinstance(value, int | float):
        raise TemplateError("odd and even are for numbers")
    return value


def _replace(text: object, old: str, new: str) -> str:
    text = str(text)
    if len(text) + (text.count(old) * len(new)) > MAX_CHARACTERS:
        raise TemplateError(f"replace makes more than {MAX_CHARACTERS} characters")
    return text.replace(old, new)


def _round(number: float, digits: int = 0) -> float:
    return round(number, max(-MAX_DIGITS, min(digits, MAX_DIGITS)))


def _trim(text: object, characters: str | None = None) -> str:
    if characters is not None and len(characters) > MAX_STRIPPED:
        raise TemplateError(f"trim strips at most {MAX_STRIPPED} different characters")
    return str(text).strip(characters)


def _json(value: object) -> str:
    """Encodes JSON; the limit matters, as repeated escaping multiplies the length of a text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _date(unix_s: float, form: str = "%Y-%m-%d") -> str:
    if len(form) > MAX_DATE_FORMAT:
        raise TemplateError(f"the format of date has more than {MAX_DATE_FORMAT} characters")
    if _WIDE.search(form):  # such as %999999999Y, which pads to that width
        raise TemplateError(f"date knows no {form[:40]!r}")
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)
