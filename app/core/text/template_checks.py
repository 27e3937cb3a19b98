"""Measures values that a template of the event loop is about to make.

Python interrupts neither `'a' * 10**9` nor the text of a list that contains another one many times.
So a check looks at the operands first, and raises `TemplateOverrunError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.core.text.base import TemplateOverrunError

CHARACTERS_PER_MEMBER = 32
"""Characters that count as one member of a list."""
MAX_CHARACTERS = 1 << 26
"""Maximum length of a text that is about to be made: more than any conversation has."""
MAX_MEMBERS = 1 << 20
"""Maximum length of a list that is about to be made."""
NUMBER_CHARACTERS = 5_000
"""Maximum length of a printed number, in characters: Python's limit is 4,300 digits."""
MAX_BITS = 256
"""Maximum length of an integer that `*` and `**` make, in bits."""
MAX_INDENT = 16
"""Maximum width of an indentation, in characters."""
MAX_DEPTH = 64
"""Maximum depth of JSON with indentation: a line is as long as the product of both."""
FILTERS = frozenset(
    (
        *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
        *("float", "format", "indent", "int", "items", "join", "last", "length", "list", "lower"),
        *("map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select"),
        *("selectattr", "sort", "string", "title", "tojson", "trim", "unique", "upper"),
    )
)
"""Filters whose results are about as large as their inputs, or are checked before."""
TEXT_METHODS = frozenset(
    (
        *("capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum"),
        *("isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
        *("istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    )
)
"""Methods of strings for which the same is true."""
OTHER_METHODS = frozenset(
    name for kind in (str, int, float) for name in dir(kind) if not name.startswith("_")
).difference(TEXT_METHODS)
"""All other methods of strings and numbers."""
WIDTH = re.compile(r"[\d*]")
"""Characters of a width or a precision in a `%` format."""


def members_of(root: Any, limit: int) -> int:
    """Returns the number of members of a value and of all that it contains, up to `limit`.

    Raises:
        TemplateOverrunError: a dict has keys that are containers.
    """
    count = 0
    members = [root]
    for member in members:  # the list grows meanwhile
        count += 1
        if isinstance(member, str):
            count += len(member) // CHARACTERS_PER_MEMBER
        elif isinstance(member, dict):
            count += len(member)
            if any(isinstance(key, tuple) for key in member):
                raise TemplateOverrunError
            if count < limit:
                members += member.values()
        elif isinstance(member, list | tuple):
            count += len(member)
            if count < limit:
                members += member
        if count >= limit:
            return limit
    return count


def check_length(length: int) -> None:
    """Checks the length of a text that is about to be made."""
    if length > MAX_CHARACTERS:
        raise TemplateOverrunError


def join_parts(parts: Iterable[str]) -> str:
    """Returns the text of a block or macro."""
    texts = [*parts]
    check_length(sum(map(len, texts)))
    return "".join(texts)


def check_bits(operator: str, left: int, right: int) -> None:
    """Checks the length of a product or a power."""
    bits = left.bit_length()
    if operator == "**":
        bits *= abs(right)
    elif operator == "*":
        bits += right.bit_length()
    if bits > MAX_BITS and operator != "%":
        raise TemplateOverrunError


def check_repeated(repeated: Any, times: Any) -> None:
    """Checks a text or list that is about to be repeated."""
    if isinstance(times, int):
        if isinstance(repeated, str):
            check_length(len(repeated) * times)
        elif isinstance(repeated, list | tuple) and len(repeated) * times > MAX_MEMBERS:
            raise TemplateOverrunError


def check_percent_format(form: Any, *arguments: Any, **keywords: Any) -> Any:
    """Checks the length of a text before `%` prints values; rejects widths."""
    if WIDTH.search(str(form)) is not None:
        raise TemplateOverrunError
    check_length(str(form).count("%") * _printed_length([*arguments, keywords]))
    return form


def check_brace_format(form: str, *arguments: Any, **keywords: Any) -> None:
    """Checks the length of a text before `format` prints values; rejects widths."""
    if ":" in form:
        raise TemplateOverrunError
    check_length(form.count("{") * _printed_length([*arguments, keywords]))


def check_joined(separator: Any, joined: Any) -> Any:
    """Checks texts that are about to be joined; returns them as a list."""
    texts = joined if isinstance(joined, list | tuple) else [*joined]
    check_length(_printed_length(texts) + len(texts) * len(str(separator)))
    return texts


def check_replaced(text: Any, old: str, new: str, count: Any = None) -> Any:
    """Checks the length of a text before a part is replaced."""
    replaced = str(text)
    check_length(len(replaced) + replaced.count(old) * len(new))
    return text


def _check_join_filter(joined: Any, d: Any = "", attribute: Any = None) -> Any:
    return check_joined(d, joined)


def _check_indent(text: Any, width: Any = 4, *others: Any, **keywords: Any) -> Any:
    _check_width(width)
    return text


def _check_json(
    tree: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> Any:
    for separator in separators or ():
        _check_width(separator)
    if indent is not None:
        _check_width(indent)
        _check_depth(tree)
    return tree


def _check_width(width: Any) -> None:
    if isinstance(width, str):
        width = len(width)
    if width > MAX_INDENT:
        raise TemplateOverrunError


def _check_depth(root: Any) -> None:
    level = [root]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise TemplateOverrunError


def _children(parent: Any) -> Iterable[Any]:
    if isinstance(parent, dict):
        return parent.values()
    if isinstance(parent, list | tuple):
        return parent
    return ()


def _printed_length(printed: list[Any] | tuple[Any, ...]) -> int:
    """Returns the maximum length of the text of a list, in characters."""
    length = 0
    for member in printed:
        if isinstance(member, str):
            length += len(member)
        elif isinstance(member, list | tuple | dict):
            length += NUMBER_CHARACTERS * members_of(member, MAX_MEMBERS)
        else:
            length += NUMBER_CHARACTERS
    return length


def unchanged(operand: Any, *arguments: Any, **keywords: Any) -> Any:
    """Returns the operand of a filter that needs no check."""
    return operand


FILTER_CHECKS: Mapping[str, Callable[..., Any]] = {
    "format": check_percent_format,
    "indent": _check_indent,
    "join": _check_join_filter,
    "replace": check_replaced,
    "tojson": _check_json,
}
METHOD_CHECKS: Mapping[str, Callable[..., object]] = {
    "format": check_brace_format,
    "replace": check_replaced,
}
