"""Translates regular expressions of JSON Schema (ECMA-262) into Python's dialect."""

import re

from app.extensions.forms.schema.bounds import SchemaError

UNICODE_CLASSES = {
    "L": (
        "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u04ff"
        "\u3040-\u30ff\u4e00-\u9fff"
    ),
    "Lu": "A-Z\u00c0-\u00d6\u00d8-\u00de",
    "Ll": "a-z\u00df-\u00f6\u00f8-\u00ff",
    "N": "0-9",
    "Nd": "0-9",
    "P": "!-#%-*,-/:;?@\\[-\\]_{}",
    "S": "$+<->\\^`|~",
    "Z": " \u00a0",
    "Zs": " \u00a0",
}
"""Supported Unicode classes, approximated by their most common members."""
LONG_CLASS_NAMES = {
    "Letter": "L",
    "Alphabetic": "L",
    "Number": "N",
    "Digit": "Nd",
    "Punctuation": "P",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Uppercase": "Lu",
    "Lowercase": "Ll",
    "Symbol": "S",
    "Separator": "Z",
}
RESERVED_WHEN_DOUBLED = frozenset("-&~|[")
"""Characters that Python reserves when they are doubled within a class."""
ESCAPE = re.compile(
    r"\\(?:(?P<property>[pP])(?P<unicode>\{[^}]*\}|\w)|u\{(?P<point>[0-9a-fA-F]{1,6})\}"
    r"|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>|(?P<end>z)|(?P<other>.))",
    re.DOTALL,
)
MULTILINE_FLAG = re.compile(r"\(\?[aiLsux]*m")
NAMED_GROUP = re.compile(r"\(\?<(?![=!])")


def translate(source: str) -> str:
    """Returns `source` in Python's dialect; ``$`` matches at the very end only.

    In ECMA-262 ``[]`` matches nothing, and ``[^]`` everything. In Python the bracket is a member,
    which is assumed when another closing bracket follows.

    Raises:
        SchemaError: Python has no equivalent.
    """
    is_multiline = MULTILINE_FLAG.match(source) is not None
    parts: list[str] = []
    position = 0
    in_class = False
    while position < len(source):
        text = source[position]
        length = 1
        if text == "\\":
            escape = ESCAPE.match(source, position)
            if escape is None:
                raise SchemaError("the pattern ends with a backslash")
            text = _translate_escape(escape, in_class)
            length = len(escape.group())
        elif in_class:
            in_class = text != "]"
            is_doubled = text in RESERVED_WHEN_DOUBLED and source[position - 1] == text
            if text == "[" or is_doubled:
                text = "\\" + text
        elif text == "[":
            text, length, in_class = _open_class(source, position)
        elif text == "$" and not is_multiline:
            text = r"\Z"
        elif NAMED_GROUP.match(source, position):
            text = "(?P<"
            length = 3
        parts.append(text)
        position += length
    return "".join(parts)


def _open_class(source: str, start: int) -> tuple[str, int, bool]:
    """Translates the opening of the class at `start`.

    Returns its text, the length in `source`, and True if the class continues after it.
    """
    opening = "["
    if source.startswith("[^", start):
        opening = "[^"
    length = len(opening)
    if not source.startswith("]", start + length):
        return opening, length, True
    length += 1
    if "]" in source[start + length :]:
        return opening + r"\]", length, True
    if opening == "[^":
        return r"[\s\S]", length, False
    return "(?!)", length, False


def _translate_escape(escape: re.Match[str], in_class: bool) -> str:
    if escape["unicode"]:
        return _unicode_class(escape, in_class)
    if escape["point"]:
        return _literal(int(escape["point"], 16))
    if escape["high"]:
        high = int(escape["high"], 16) % 0x400
        low = int(escape["low"], 16) % 0x400
        return _literal(0x10000 + (high << 10) + low)
    if escape["control"]:
        return _literal(ord(escape["control"].upper()) - 64)
    if escape["back"]:
        return f"(?P={escape['back']})"
    if escape["end"] and not in_class:
        return r"\Z"
    return escape.group()


def _unicode_class(escape: re.Match[str], in_class: bool) -> str:
    name = escape["unicode"].strip("{}").split("=")[-1]
    is_negated = escape["property"] == "P"
    members = UNICODE_CLASSES.get(LONG_CLASS_NAMES.get(name, name))
    if members is None or (is_negated and in_class):
        raise SchemaError(f"the pattern uses the Unicode class {name!r} in an unsupported way")
    if in_class:
        return members
    if is_negated:
        return f"[^{members}]"
    return f"[{members}]"


def _literal(point: int) -> str:
    if point > 0x10FFFF:
        raise SchemaError("the pattern contains a code point outside the Unicode range")
    return f"\\U{point:08x}"
