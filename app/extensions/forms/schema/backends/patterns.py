"""Decides which regular expressions in schemas the backends accept.

xgrammar has its own converter, llguidance accepts the syntax of Rust's `regex-syntax` without
look-around, and Outlines parses with Python's `re`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]  # what vLLM uses for Outlines
from typing import NamedTuple

from app.extensions.forms.schema.request_patterns import token_names

MAX_REMEMBERED = 512
"""Patterns whose verdicts are remembered: about 100 KB."""
TOKEN = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|x\{[^}]*\}|u[0-9a-fA-F]{4}|u\{[^}]*\}|U[0-9a-fA-F]{8}"
    r"|[pP](?:\{[^}]*\}|\w)|c[A-Za-z]|.))"
    r"|(?P<set>\[\^?(?:\]|\[:\^?\w+:\])?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])"
    r"|(?P<group>\((?:\?(?:<?[=!]|P?<[A-Za-z_]\w*>|[a-zA-Z-]*[:)]|.))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<repeat>[*+?]|\{\d+(?:,\d*)?\})|(?P<start>\^)|(?P<end>\$)|(?P<wrong>[\[{\\])"
    r"|(?P<literal>.)",
    re.DOTALL,
)
RANGE = re.compile(r"(\\.|[^\\])-(\\.|[^\\\]])", re.DOTALL)
CLASS_LETTERS = "dDsSwWpP"
XGRAMMAR_MISSING_ESCAPES = frozenset("123456789bBkpP")
RUST_LETTERS = frozenset("dDsSwWnrtfvaxuUpPAz")
RUST_FLAGS = frozenset("isxuUR-")
UNSUPPORTED_TOKENS = ("ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS")
WORD_BOUNDARIES = ("AT_BOUNDARY", "AT_NON_BOUNDARY")


class Token(NamedTuple):
    """A token of a pattern."""

    kind: str
    text: str


@lru_cache(MAX_REMEMBERED)
def xgrammar_accepts(source: str) -> bool:
    """Returns True if xgrammar converts the pattern of a schema."""
    tokens = _tokens(source)
    if "\0" in source or not _is_well_formed(tokens):
        return False
    for number, (kind, text) in enumerate(tokens):
        if kind == "escape" and (text[1] in XGRAMMAR_MISSING_ESCAPES or text in (r"\x", r"\u")):
            return False
        if kind == "set" and (text in ("[]",) or text.startswith("[]") or not _has_ranges(text)):
            return False
        if kind == "group" and not _is_xgrammar_group(text, number):
            return False
    return True


@lru_cache(MAX_REMEMBERED)
def llguidance_accepts(source: str) -> bool:
    """Returns True if llguidance parses the pattern of a schema."""
    tokens = _tokens(source)
    if not _is_well_formed(tokens):
        return False
    for number, (kind, text) in enumerate(tokens):
        if kind == "escape" and not _is_rust_escape(text):
            return False
        if kind == "set" and not _is_rust_set(text):
            return False
        if kind == "group" and not _is_rust_group(text):
            return False
        before = "bar" if number == 0 else tokens[number - 1].kind
        after = "bar" if number == len(tokens) - 1 else tokens[number + 1].kind
        if kind == "start" and before not in ("bar", "group"):
            return False
        if kind == "end" and after not in ("bar", "close"):
            return False
    return True


@lru_cache(MAX_REMEMBERED)
def outlines_accepts(source: str) -> bool:
    """Returns True if vLLM accepts the regular expression that Outlines makes of a pattern."""
    if source.startswith("^") and source.endswith("$"):
        source = source[1:-1]
    try:
        parsed = _parser.parse(f'("{source}")')
    except (re.error, RecursionError, OverflowError):
        return False
    names = set(token_names(parsed))
    return names.isdisjoint(UNSUPPORTED_TOKENS) and names.isdisjoint(WORD_BOUNDARIES)


def _tokens(source: str) -> list[Token]:
    return [Token(str(match.lastgroup), match.group()) for match in TOKEN.finditer(source)]


def _is_well_formed(tokens: Sequence[Token]) -> bool:
    """Returns True if the brackets are balanced, and every repeat has something to repeat."""
    depth = 0
    previous = "bar"
    for kind, text in tokens:
        is_flag = kind == "group" and text.endswith(")")
        if kind == "group" and not is_flag:
            depth += 1
        depth -= kind == "close"
        if kind == "wrong" or depth < 0:
            return False
        if kind == "repeat":
            limits = re.findall(r"\d+", text)
            is_first = previous in ("bar", "group", "start", "end")
            if is_first or len(limits) == 2 and int(limits[0]) > int(limits[1]):
                return False
        previous = "group" if is_flag else kind
    return depth == 0


def _has_ranges(text: str) -> bool:
    """Returns True if all ranges of a character class ascend."""
    for match in RANGE.finditer(text.removeprefix("[").removeprefix("^").removesuffix("]")):
        first, last = match.groups()
        if first.startswith("\\") and first[1] in CLASS_LETTERS:
            continue
        if last.startswith("\\") and last[1] in CLASS_LETTERS:
            return False
        if len(first) == len(last) == 1 and first > last:
            return False
    return True


def _is_xgrammar_group(text: str, number: int) -> bool:
    """Returns True for a group that xgrammar knows; the flag ``(?i)`` only comes first."""
    if text in ("(", "(?:", "(?=", "(?!") or text.endswith(">"):
        return text != "(?>"
    return text == "(?i)" and number == 0


def _is_rust_escape(text: str) -> bool:
    letter = text[1]
    if letter in "<>":
        return False
    if re.fullmatch(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", text):  # half a surrogate pair
        return False
    if letter in "xuU" and len(text) == 2:
        return False
    return letter in RUST_LETTERS or letter.isascii() and not letter.isalnum()


def _is_rust_set(text: str) -> bool:
    inner = text.removeprefix("[").removeprefix("^")
    if inner == "]" or not _has_ranges(text.replace("--", "")):
        return False
    plain = re.sub(r"\\.|\[:\^?\w+:\]", "", inner, flags=re.DOTALL)
    if plain.count("[") and "&&[" not in plain:
        return False
    escapes = re.findall(r"\\(.)", inner, re.DOTALL)
    return all(
        letter in RUST_LETTERS or letter.isascii() and not letter.isalnum() for letter in escapes
    )


def _is_rust_group(text: str) -> bool:
    if text in ("(", "(?:") or text.endswith(">"):
        return text != "(?>"
    return text[-1] in ":)" and RUST_FLAGS.issuperset(text[2:-1])
