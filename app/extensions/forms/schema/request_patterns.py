"""Regular expressions of requests: what both xgrammar and llguidance reject is an error."""

import re
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]  # what `Pattern` uses

from app.extensions.forms.schema.bounds import SchemaError
from app.extensions.forms.schema.patterns import Pattern

UNSUPPORTED_TOKENS = {
    "ASSERT": "look-ahead and look-behind",
    "ASSERT_NOT": "look-ahead and look-behind",
    "ATOMIC_GROUP": "atomic groups",
    "FAILURE": "patterns that match nothing",  # Python 3.13 reads `(?!)`, which `[]` means, so
    "GROUPREF": "backreferences",
    "GROUPREF_EXISTS": "backreferences",
}
WORD_BOUNDARIES = ("AT_BOUNDARY", "AT_NON_BOUNDARY")
KNOWN_ESCAPES = "ABDPSUWZabcdfknprstuvwxz"
"""Letters with a meaning after a backslash; xgrammar takes any other letter for itself."""
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPES_AND_CLASSES = re.compile(
    r"\\[pPu]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]",
    re.DOTALL,
)
UNSUPPORTED_TEXT = re.compile(r"\(\?(?:#|[aLm])|\{(?!\d+(?:,\d*)?\})")
"""Matches comments, flags and braces that both backends reject."""


def compile_regex(source: str) -> Pattern:
    """Returns the pattern of a request.

    Raises:
        SchemaError: The pattern is invalid, too large, or no backend of vLLM supports it.
    """
    unsupported = UNSUPPORTED_TEXT.search(ESCAPES_AND_CLASSES.sub("_", source))
    if unsupported is not None:
        raise SchemaError(f"the pattern contains {unsupported.group()!r}, which is not supported")
    pattern = Pattern(ESCAPE.sub(_literal_letter, source))
    for name in token_names(_parser.parse(str(pattern), re.ASCII)):
        if name in UNSUPPORTED_TOKENS:
            raise SchemaError(f"{UNSUPPORTED_TOKENS[name]} are not supported")
        if name in WORD_BOUNDARIES:
            raise SchemaError("word boundaries are not supported")
    return pattern


def _literal_letter(escape: re.Match[str]) -> str:
    letter = escape[1]
    if letter.isascii() and letter.isalpha() and letter not in KNOWN_ESCAPES:
        return letter
    return escape.group()


def token_names(tokens: object) -> Iterator[str]:
    """Yields the names of all tokens in a parsed pattern."""
    stack = [tokens]
    while stack:
        part = stack.pop()
        if isinstance(part, list | tuple | _parser.SubPattern):
            stack += part
        else:
            yield str(part)
