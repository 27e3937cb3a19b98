"""The Jinja environment of scripts: a sandbox with bounded operators, filters and functions."""

import json
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from random import Random
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from app.extensions.scripts.template_limits import (
    MAX_BITS,
    MAX_CHARACTERS,
    MAX_DATE_FORMAT,
    MAX_DIGITS,
    MAX_HEX_DIGITS,
    MAX_STRIPPED,
    OPERATION_WORK,
    budget_of,
    size_of,
    too_long,
)

JINJA_FILTERS = (
    "upper",
    "lower",
    "capitalize",
    "title",
    "int",
    "float",
    "length",
    "first",
    "last",
    "default",
    "string",
    "abs",
)
"""Jinja's filters that scripts can use; `ScriptEnvironment` adds others."""
JINJA_TESTS = ("defined", "none", "string", "number")
CONCATENATE = "~"
CHARGE = "charge operand"
"""Names of internal filters, which no template can spell."""
BINARY_OPERATORS: Mapping[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
PADDED_DIRECTIVE = re.compile(r"%[^A-Za-z%]")
"""A date directive with a width, such as %999999999Y, which pads to that width."""


class ScriptEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded operators and filters. Values have members, but no attributes."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self) -> None:
        # Without `optimized=False`, Jinja would evaluate constant parts while it compiles, once per
        # level of nesting.
        super().__init__(
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
            optimized=False,
            finalize=charge_output,
        )
        functions: dict[str, Callable[..., object]] = {
            name: self.filters[name] for name in JINJA_FILTERS
        }
        for name in ("first", "last"):
            functions[name] = partial(self.filters[name], self)
        functions |= {
            "replace": replace_text,
            "round": round_number,
            "trim": trim,
            "json": encode_json,
            "date": format_date,
            "truncate": truncate,
            CONCATENATE: concatenate,
            CHARGE: unchanged,
        }
        self.filters = {name: bounded(function) for name, function in functions.items()}
        self.tests = {name: self.tests[name] for name in JINJA_TESTS}
        self.tests["odd"] = is_odd
        self.tests["even"] = is_even
        self.globals = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns a member of a mapping; attributes of other values would be methods."""
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns a member of a mapping or a list, or an undefined value."""
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        """Computes with two numbers, or joins two texts or lists with `+`.

        Raises:
            TemplateError: An operand has a wrong type or is too large.
        """
        for operand in (left, right):
            if isinstance(operand, Undefined):
                str(operand)  # raises the error that names the value
        size = size_of(left) + size_of(right)
        budget_of(context).spend(OPERATION_WORK + size)
        are_texts = isinstance(left, str) and isinstance(right, str)
        are_lists = isinstance(left, list) and isinstance(right, list)
        if operator == "+" and (are_texts or are_lists):
            if size > MAX_CHARACTERS:
                raise TemplateError(f"the result of + exceeds {MAX_CHARACTERS} characters")
            return left + right
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TemplateError(f"{operator} requires numbers")
        for operand in (left, right):
            if isinstance(operand, int) and operand.bit_length() > MAX_BITS:
                raise TemplateError(f"{operator} supports only numbers of up to {MAX_BITS} bits")
        return BINARY_OPERATORS[operator](left, right)


class OperationLimiter(NodeTransformer):
    """Replaces operations that Jinja compiles to plain Python by bounded ones.

    `~` becomes a filter, and the operands of comparisons pass through a filter, because `x in y`
    searches a text.
    """

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Replaces `~` by a filter."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), CONCATENATE)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  # Jinja's name
        """Charges both sides of each comparison."""
        self.generic_visit(node)
        node.expr = _filter(node.expr, CHARGE)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, CHARGE)
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def bounded(function: Callable[..., object]) -> Callable[..., object]:
    """Returns a filter that charges its operands, and bounds its operands and its result."""

    @pass_context
    @wraps(function)
    def apply(context: Context, *operands: object, **options: object) -> object:
        sizes = [size_of(operand) for operand in (*operands, *options.values())]
        budget_of(context).spend(OPERATION_WORK + sum(sizes))
        if sum(sizes) > MAX_CHARACTERS:
            raise too_long()
        result = function(*operands, **options)
        if isinstance(result, str) and len(result) > MAX_CHARACTERS:
            raise too_long()
        return result

    return apply


@pass_context
def charge_output(context: Context, value: object) -> object:
    """Charges a value that is about to become text."""
    size = size_of(value)
    budget_of(context).spend(OPERATION_WORK + size)
    if size > MAX_CHARACTERS:
        raise too_long()
    return value


def truncate(text: object, length: int = 100) -> str:
    """Returns the first characters of a text."""
    return str(text)[:length]


def concatenate(values: list[object]) -> str:
    """Joins the texts of values."""
    return "".join(map(str, values))


def unchanged(value: object) -> object:
    """Returns an operand whose size has been charged."""
    return value


def is_odd(number: object) -> bool:
    """Returns true for an odd number."""
    return _to_number(number) % 2 == 1


def is_even(number: object) -> bool:
    """Returns true for an even number."""
    return _to_number(number) % 2 == 0


def _to_number(value: object) -> float:
    """Returns a number; a text raises `TemplateError`, because `%` would format it."""
    if not isinstance(value, int | float):
        raise TemplateError("the tests odd and even require numbers")
    return value


def replace_text(text: object, old: str, new: str) -> str:
    """Replaces every `old` in a text by `new`."""
    text = str(text)
    if len(text) + (text.count(old) * len(new)) > MAX_CHARACTERS:
        raise TemplateError(f"the result of the replace filter exceeds {MAX_CHARACTERS} characters")
    return text.replace(old, new)


def round_number(number: float, digits: int = 0) -> float:
    """Rounds a number to a number of decimal digits."""
    return round(number, max(-MAX_DIGITS, min(digits, MAX_DIGITS)))


def trim(text: object, characters: str | None = None) -> str:
    """Strips blanks, or any of `characters`, from both ends of a text."""
    if characters is not None and len(characters) > MAX_STRIPPED:
        raise TemplateError(f"trim can strip at most {MAX_STRIPPED} different characters")
    return str(text).strip(characters)


def encode_json(value: object) -> str:
    """Encodes JSON; repeated encoding multiplies the length of a text, so results are bounded."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def format_date(unix_s: float, form: str = "%Y-%m-%d") -> str:
    """Formats Unix seconds in UTC."""
    if len(form) > MAX_DATE_FORMAT:
        raise TemplateError(f"the date format exceeds {MAX_DATE_FORMAT} characters")
    if PADDED_DIRECTIVE.search(form):
        raise TemplateError(f"the date filter does not support the format {form[:40]!r}")
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)


class RandomFunctions:
    """Functions of templates that draw from one random stream."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def random(self, minimum: int = 0, maximum: int = 100) -> int:
        """Returns a whole number from `minimum` to `maximum`."""
        return self._rng.randint(minimum, maximum)

    def choose(self, *items: object) -> object:
        """Returns one of the items."""
        return self._rng.choice(items)

    def hex(self, digits: int = 8) -> str:
        """Returns random hexadecimal digits."""
        digits = max(1, min(digits, MAX_HEX_DIGITS))
        return f"{self._rng.getrandbits(4 * digits):0{digits}x}"

    def by_name(self) -> dict[str, object]:
        """Returns the functions by their names in templates."""
        return {"random": self.random, "choose": self.choose, "hex": self.hex}
