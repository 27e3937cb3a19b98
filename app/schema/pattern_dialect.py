"""Regular expressions as JSON Schema writes them (ECMA-262), told in Python's dialect."""

from __future__ import annotations

import re

from app.schema.errors import SchemaError

CLASSES = {
    "L": "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff",
    "Lu": "A-Z\u00c0-\u00d6\u00d8-\u00de",
    "Ll": "a-z\u00df-\u00f6\u00f8-\u00ff",
    "N": "0-9",
    "Nd": "0-9",
    "P": "!-#%-*,-/:;?@\\[-\\]_{}",
    "S": "$+<->\\^`|~",
    "Z": " \u00a0",
    "Zs": " \u00a0",
}
"""Unicode classes that are understood, by their commonest members."""
LONG_NAMES = {"Letter": "L", "Alphabetic": "L", "Number": "N", "Digit": "Nd", "Punctuation": "P"} | {
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Uppercase": "Lu",
    "Lowercase": "Ll",
    "Symbol": "S",
    "Separator": "Z",
}
DOUBLED = frozenset("-&~|[")
"""Doubled in a class, these are reserved by Python for later."""

ESCAPE = re.compile(
    r"\\(?:(?P<negated>[pP])(?P<unicode>\{[^}]*\}|\w)|u\{(?P<point>[0-9a-fA-F]{1,6})\}"
    r"|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>|(?P<end>z)|(?P<other>.))",
    re.DOTALL,
)
NAMED = re.compile(r"\(\?<(?![=!])")


def translate(source: str) -> str:
    """`source` in Python's dialect; ``$`` means the very end. SchemaError for what has no equivalent."""
    multiline = re.match(r"\(\?[aiLsux]*m", source) is not None
    parts: list[str] = []
    at, inside = 0, False
    while at < len(source):
        taken, text, inside = _next(source, at, inside, multiline)
        parts.append(text)
        at += taken
    return "".join(parts)


def _next(source: str, at: int, inside: bool, multiline: bool) -> tuple[int, str, bool]:
    """How many characters are read at `at`, what they become, and whether a class is open after them."""
    character = source[at]
    if character == "\\":
        found = ESCAPE.match(source, at)
        if found is None:
            raise SchemaError("the pattern ends with a backslash")
        return len(found.group()), _escape(found, inside), inside
    if inside:
        if character == "]":
            return 1, "]", False
        doubled = character == "[" or (character in DOUBLED and source[at - 1] == character)
        return 1, "\\" + character if doubled else character, True
    if character == "[":
        return _class_start(source, at)
    if character == "$" and not multiline:
        return 1, r"\Z", False
    if NAMED.match(source, at):
        return 3, "(?P<", False
    return 1, character, False


def _class_start(source: str, at: int) -> tuple[int, str, bool]:
    """The start of a class.

    One that seems empty matches nothing in ECMA-262, and its negation everything; in Python the
    bracket is a member, which is what is meant when another one follows.
    """
    start = "[^" if source.startswith("[^", at) else "["
    after = at + len(start)
    if not source.startswith("]", after):
        return len(start), start, True
    if "]" in source[after + 1 :]:
        return len(start) + 1, start + r"\]", True
    return len(start) + 1, r"[\s\S]" if start == "[^" else "(?!)", False


def _escape(found: re.Match[str], inside: bool) -> str:
    if found["unicode"]:
        return _unicode_class(found["unicode"].strip("{}"), found["negated"] == "P", inside)
    if found["point"]:
        return _literal(int(found["point"], 16))
    if found["high"]:
        return _literal(0x10000 + (int(found["high"], 16) % 0x400 << 10) + int(found["low"], 16) % 0x400)
    if found["control"]:
        return _literal(ord(found["control"].upper()) - 64)
    if found["back"]:
        return f"(?P={found['back']})"
    return r"\Z" if found["end"] and not inside else found.group()


def _literal(point: int) -> str:
    if point > 0x10FFFF:
        raise SchemaError("the pattern names a character beyond Unicode")
    return f"\\U{point:08x}"


def _unicode_class(name: str, negated: bool, inside: bool) -> str:
    name = name.split("=")[-1]
    members = CLASSES.get(LONG_NAMES.get(name, name))
    if members is None or (negated and inside):
        raise SchemaError(f"the pattern uses the Unicode class {name!r} in a way that is not supported")
    return members if inside else f"[{'^' if negated else ''}{members}]"
