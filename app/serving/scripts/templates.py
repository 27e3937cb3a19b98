"""Template texts: `It is {{ message | length }} characters, {{ match.name | title }}.`

The language is Jinja's without unbounded work: no loops, macros or imports, no methods, no repetition of
texts. Templates only take values, compare and compute them and apply filters. Rendering is linear in the
length of the template and of its values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.runtime import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.serving.scripts.rules import ScriptError, ScriptFailure

MOST_CHARACTERS = 1 << 18
"""Longest text that a template, or a filter in it, makes, in characters."""
MOST_NODES = 2000
"""Most nodes in the syntax tree of one template."""
MOST_BITS = 1024
MOST_DIGITS = 20
MOST_HEX = 64
NAMES = frozenset(
    ("match", "message", "user", "tool_result", "model", "api", "turn", "count", "now", "unix", "header")
)
"""Names that a template can use (docs/scripts.md)."""
FUNCTIONS = frozenset(("random", "choose", "hex", "header"))
"""Names that a template can call."""
FILTERS = (
    *("upper", "lower", "capitalize", "title", "trim", "int", "float", "length", "first", "last"),
    *("default", "string", "abs"),
)
TESTS = ("defined", "none", "string", "number", "odd", "even")
ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr),
    *(nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call, nodes.CondExpr, nodes.If, nodes.Compare),
    *(nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.Concat, nodes.Add),
    *(nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.List, nodes.Tuple, nodes.Dict),
    *(nodes.Pair, nodes.Keyword),
)
CALLED = {nodes.For: "a loop", nodes.Macro: "a macro", nodes.Assign: "set", nodes.Pow: "a power"}
_WIDE = re.compile(r"%[^A-Za-z%]")
Values = Mapping[str, object]


class Template:
    """A compiled text of a script. ScriptError for an invalid template."""

    def __init__(self, source: str, groups: frozenset[str] | None = None) -> None:
        """`groups` are the groups of `match`; None allows any group."""
        self.source = source
        self.is_constant = not any(mark in source for mark in ("{{", "{%", "{#"))
        if len(source) > MOST_CHARACTERS:
            raise ScriptError(f"a text of {len(source)} characters is too long")
        if any("\ud800" <= character <= "\udfff" for character in source):
            raise ScriptError(f"the text {source[:60]!a} has half of a character (a surrogate)")
        if self.is_constant:
            return
        environment = _Environment()
        try:
            tree = environment.parse(source)
            _check(tree, groups)
            self._template = environment.from_string(source)
            body = tree.body[0] if len(tree.body) == 1 else None
            is_alone = isinstance(body, nodes.Output) and len(body.nodes) == 1
            is_alone = is_alone and source.startswith("{{") and source.endswith("}}")
            alone = source[2:-2].strip("-+ \n")
            self._expression = environment.compile_expression(alone, False) if is_alone else None
        except (TemplateError, ValueError, OverflowError) as error:  # such as a number of 5,000 digits
            raise ScriptError(f"template {source[:60]!r}: {getattr(error, 'message', '') or error}") from None
        except (RecursionError, MemoryError):
            raise ScriptError(f"template {source[:60]!r}: is nested too deeply") from None

    def text(self, values: Values) -> str:
        """Renders the text. ScriptFailure when rendering fails."""
        if self.is_constant:
            return self.source
        return str(self._made(lambda: "".join(_limited(self._template.generate(**values)))))

    def value(self, values: Values) -> object:
        """Renders a template of one expression without converting the value to text; other templates give a
        text.
        """
        if self.is_constant or self._expression is None:
            return self.text(values)
        expression = self._expression
        return self._made(lambda: _plain(expression(**values)))

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # a template is a program, and may fail in any way
            raise ScriptFailure(f"its template {self.source[:60]!r} failed: {error}") from None


class RandomFunctions:
    """Random values for templates, from one stream."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def random(self, least: int = 0, most: int = 100) -> int:
        return self._rng.randint(least, most)

    def choose(self, *items: object) -> object:
        return self._rng.choice(items)

    def hex(self, digits: int = 8) -> str:
        digits = max(1, min(digits, MOST_HEX))
        return f"{self._rng.getrandbits(4 * digits):0{digits}x}"

    def values(self) -> dict[str, object]:
        return {"random": self.random, "choose": self.choose, "hex": self.hex}


class _Environment(ImmutableSandboxedEnvironment):
    """Sandbox that allows `*` and `%` only for numbers of limited size: a text times a million needs a
    gigabyte.
    """

    intercepted_binops = frozenset("*%")

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
        ours = {"replace": _replace, "round": _round, "json": _json, "date": _date, "truncate": _truncate}
        self.filters = {name: self.filters[name] for name in FILTERS} | ours
        self.tests = {name: self.tests[name] for name in TESTS}
        self.globals = {}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TemplateError(f"{operator} is for numbers")
        if isinstance(left, int) and isinstance(right, int) and (left | right).bit_length() > MOST_BITS:
            raise TemplateError(f"{operator} is for numbers of up to {MOST_BITS} bits")
        return super().call_binop(context, operator, left, right)


def _check(tree: nodes.Template, groups: frozenset[str] | None) -> None:
    """Raises TemplateError for a node, call, group or name that scripts do not allow."""
    waiting: list[nodes.Node] = [tree]
    for number in count():
        if not waiting:
            break
        if number > MOST_NODES:
            raise TemplateError(f"has more than {MOST_NODES} parts")
        node = waiting.pop()
        waiting.extend(node.iter_child_nodes())
        if not isinstance(node, ALLOWED):
            what = CALLED.get(type(node), type(node).__name__.lower())
            raise TemplateError(f"{what} (line {node.lineno}) is not possible in a script")
        called = node.node if isinstance(node, nodes.Call) else None
        if called is not None and not (isinstance(called, nodes.Name) and called.name in FUNCTIONS):
            raise TemplateError(f"only {', '.join(sorted(FUNCTIONS))} can be called (line {node.lineno})")
        if groups is None or not isinstance(node, nodes.Getattr | nodes.Getitem):
            continue
        group = None
        if isinstance(node, nodes.Getattr):
            group = node.attr
        elif isinstance(node.arg, nodes.Const):
            group = str(node.arg.value)
        is_match = isinstance(node.node, nodes.Name) and node.node.name == "match"
        if is_match and group is not None and group not in groups:
            there = f"there are {', '.join(sorted(groups))}" if groups else "the rule has no regex"
            raise TemplateError(f"there is no group {group!r} in match; {there}")
    unknown = meta.find_undeclared_variables(tree) - NAMES - FUNCTIONS
    if unknown:
        known = ", ".join(sorted(NAMES | FUNCTIONS))
        raise TemplateError(f"unknown name {min(unknown)!r}; there are {known}")


def _limited(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MOST_CHARACTERS:
            raise TemplateError(f"the text has more than {MOST_CHARACTERS} characters")
        yield piece


def _plain(value: object) -> object:
    """Converts a value to a JSON type; StrictUndefined raises its error."""
    if isinstance(value, StrictUndefined):
        str(value)  # raises its error
    if isinstance(value, str):
        return "".join(_limited(iter((value,))))
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateError(f"{value} is no number of JSON")
    return value if isinstance(value, int | float | bool | list | dict) or value is None else str(value)


def _replace(text: object, old: str, new: str) -> str:
    text = str(text)
    if len(text) + text.count(old) * len(new) > MOST_CHARACTERS:
        raise TemplateError(f"replace makes more than {MOST_CHARACTERS} characters")
    return text.replace(old, new)


def _json(value: object) -> str:
    """Encodes JSON of limited length: repeated escaping multiplies the length of a text."""
    return "".join(_limited(iter((json.dumps(value, ensure_ascii=False, allow_nan=False),))))


def _round(number: float, digits: int = 0) -> float:
    return round(number, max(-MOST_DIGITS, min(digits, MOST_DIGITS)))


def _truncate(text: object, most: int = 100) -> str:
    return str(text)[:most]


def _date(unix_s: float, form: str = "%Y-%m-%d") -> str:
    if _WIDE.search(form):  # such as %999999999Y, which pads to that width
        raise TemplateError(f"date knows no {form[:40]!r}")
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)
