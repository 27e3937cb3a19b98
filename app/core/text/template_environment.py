"""The sandbox of chat templates, with the functions of transformers, as template authors expect.

A template can print any object, and the text of a Python function or iterator has its address in
memory: a leak, and a prompt that differs between processes. The sandbox therefore wraps such
objects; see `printable`.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial, wraps
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, MethodWrapperType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner

LONG_JSON_LENGTH = 20_000
"""Members and characters of a value from which its JSON is written in pieces."""
DICT_ATTRIBUTES = frozenset(dir(dict))
DICT_METHODS = frozenset(("get", "items", "keys", "values"))
"""Methods of dicts that templates use, and that change nothing."""
PLAIN_METHODS = frozenset(
    ("endswith", "lower", "lstrip", "rstrip", "split", "startswith", "strip", "title", "upper")
)
"""Methods of strings that templates use. Their results are no larger than the string."""
ITERATOR_FILTERS = (
    "batch",
    "items",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "unique",
)
"""Jinja's filters that return an iterator."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)
REPRS_WITH_ADDRESS = frozenset(
    kind.__repr__
    for kind in (
        object,
        FunctionType,
        BuiltinMethodType,
        MethodType,
        MethodWrapperType,
        GeneratorType,
    )
)


class Opaque:
    """An object of Python, without its address."""

    __slots__ = ("_wrapped",)

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __repr__(self) -> str:
        return ADDRESS.sub("", repr(self._wrapped))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Opaque):
            other = other._wrapped
        return bool(self._wrapped == other)

    def __hash__(self) -> int:
        return hash(self._wrapped)


class TemplateFunction(Opaque):
    """A function or method that templates can call."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls the function."""
        return self._wrapped(*arguments, **keywords)


class TemplateIterator(Opaque):
    """An iterator that templates can loop over."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._wrapped)


def printable(value: Any) -> Any:
    """Returns `value`, wrapped if its text would have an address in memory."""
    represent: object = type(value).__repr__
    if represent not in REPRS_WITH_ADDRESS:
        return value
    if hasattr(value, "__next__"):
        return TemplateIterator(value)
    if callable(value):
        return TemplateFunction(value)
    return Opaque(value)


class TemplateCycler(Cycler):
    """Jinja's cycler, without an address in its text."""

    def __repr__(self) -> str:
        return "<cycler>"


class TemplateJoiner(Joiner):
    """Jinja's joiner, without an address in its text."""

    def __repr__(self) -> str:
        return "<joiner>"


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: marks the assistant's text; has no effect here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses the block as a scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with fast look-up of dict members, and without addresses in texts.

    `now` returns the local time.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        for name in ITERATOR_FILTERS:
            self.filters[name] = _with_printable_result(self.filters[name])
        self.filters["tojson"] = _to_json
        functions = {
            **self.globals,
            "cycler": TemplateCycler,
            "joiner": TemplateJoiner,
            "raise_exception": _raise_exception,
            "strftime_now": partial(_strftime_now, now),
        }
        for name, function in functions.items():
            self.globals[name] = TemplateFunction(function)

    def prepare(self, tree: nodes.Template) -> None:
        """Changes the syntax of a template before it is compiled."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the same as Jinja, which first tries the Python attribute, then the key."""
        kind = type(obj)
        if kind is dict:
            if attribute in DICT_METHODS:
                return TemplateFunction(getattr(obj, attribute))
            if attribute not in DICT_ATTRIBUTES:
                if attribute in obj:
                    return obj[attribute]
                return self.undefined(obj=obj, name=attribute)
        elif kind is str and attribute in PLAIN_METHODS:
            return TemplateFunction(getattr(obj, attribute))
        return printable(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns the same as Jinja: the member, or else the Python attribute."""
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return printable(super().getitem(obj, argument))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function as Jinja does; most are methods, which need fewer checks."""
        if type(__obj) is not TemplateFunction:
            return super().call(__context, __obj, *args, **kwargs)
        kwargs.pop("_block_vars", None)
        kwargs.pop("_loop_vars", None)
        try:
            return __obj(*args, **kwargs)
        except StopIteration:
            return __self.undefined("The function has raised StopIteration.")


def _with_printable_result(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_function)
    def apply(*arguments: Any, **keywords: Any) -> Any:
        return printable(filter_function(*arguments, **keywords))

    return apply


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns plain JSON for prompts, while Jinja's own filter escapes for HTML."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if json_length(value, LONG_JSON_LENGTH) < LONG_JSON_LENGTH:
        return encoder.encode(value)
    return "".join(encoder.iterencode(value))  # takes ten times as long, but can be interrupted


def _strftime_now(now: Callable[[], datetime], form: str) -> str:
    return now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def json_length(value: object, limit: int) -> int:
    """Estimates the members and characters in the JSON of `value`, up to `limit`."""
    length = 0
    members = [value]
    for member in members:  # the list grows meanwhile
        length += 1
        if isinstance(member, str | list | tuple | dict):
            length += len(member)
        if length >= limit:
            return limit
        if isinstance(member, dict):
            members += member.values()
        elif isinstance(member, list | tuple):
            members += member
    return length
