"""Completes the beginning of a Python expression, so that it can be parsed."""

from __future__ import annotations

import ast
import re
import warnings
from itertools import islice
from typing import Final, NamedTuple

CLOSING: Final = {"[": "]", "(": ")", "{": "}", "'": "'", '"': '"'}
OPENING: Final = {"]": "[", ")": "(", "}": "{"}
STRING: Final = r"""'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|"(?:[^"\\]|\\.)*+(?:"|\\?\Z)"""
"""A text in quotes, perhaps without its end."""
BRACKETS: Final = re.compile(rf"{STRING}|[][(){{}}]", re.DOTALL)
TOKEN: Final = re.compile(rf"{STRING}|\w++|[^\w\s]", re.DOTALL)
F_STRING: Final = re.compile(r"\b(?:[fF][rR]?|[rR][fF])['\"]")
"""The beginning of a formatted text, whose braces contain expressions."""
WORD_OR_SIGN: Final = re.compile(r"\w++|[^\w\s]")
MAX_TOKENS = 1_000
"""Names, numbers, texts and signs of an expression, which is parsed in 5 to 10 ms."""


class CompletedText(NamedTuple):
    """A text as Python, and the suffix that was appended to make it valid."""

    module: ast.Module
    suffix: str


def is_too_long(text: str) -> bool:
    """Returns whether an expression has too many signs to be parsed.

    A text in quotes counts as one sign. If there is a formatted text, the signs within all texts
    count: each `{1}` takes about as long as a call.
    """
    pattern = WORD_OR_SIGN if F_STRING.search(text) else TOKEN
    return sum(1 for _ in islice(pattern.finditer(text), MAX_TOKENS + 1)) > MAX_TOKENS


def parsed_python(text: str) -> ast.Module:
    """Returns the syntax of an expression.

    Raises:
        SyntaxError: The text is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text)


def completed_python(text: str) -> CompletedText | None:
    """Returns `text` with all brackets and quotes closed; None within a name or a key.

    Raises:
        ValueError: A bracket closes another one, or the text is too long.
    """
    if is_too_long(text):
        raise ValueError("the expression is too long")
    stack = open_brackets(text)
    innermost = stack[-1] if stack else ""
    text = text.rstrip()
    if text.endswith(("=", ":")):
        return None
    if innermost == "{" and not _has_open_value(text, "{", ":"):
        return None
    if innermost == "(" and not _has_open_value(text, "(", "="):
        return None
    text = text.removesuffix(",")
    if innermost == "[" and not text.endswith(("[", ")")):
        return None
    suffix = "".join(CLOSING[bracket] for bracket in reversed(stack))
    try:
        module = parsed_python(text + suffix)
    except SyntaxError:
        return None
    if not module.body or "}" in suffix and _has_set(module):
        return None
    return CompletedText(module, suffix)


def _has_set(module: ast.Module) -> bool:
    """Returns whether a text has a set: one that the completion closes is a cut object."""
    return any(isinstance(node, ast.Set) for node in ast.walk(module))


def open_brackets(text: str) -> list[str]:
    """Returns the brackets and quotes that are open at the end. Raises ValueError."""
    stack: list[str] = []
    for match in BRACKETS.finditer(text):
        token = match[0]
        if token in OPENING:
            if not stack or stack.pop() != OPENING[token]:
                raise ValueError("mismatched brackets")
        elif token in CLOSING or not _is_closed(token):
            stack.append(token[0])
    return stack


def _is_closed(text: str) -> bool:
    """Returns whether the quotes around a text are closed."""
    if not text.endswith(text[0]):
        return False
    inner = text[1:-1]
    return (len(inner) - len(inner.rstrip("\\"))) % 2 == 0


def _has_open_value(text: str, bracket: str, assignment: str) -> bool:
    """Returns whether the innermost bracket is the value of a field or an argument."""
    prefix = text[: text.rfind(bracket)]
    return prefix.count(assignment) > prefix.count(",")
