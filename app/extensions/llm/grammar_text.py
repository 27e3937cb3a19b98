"""Grammars in the notation of Lark, as llguidance reads them."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from llguidance.gbnf_to_lark import gbnf_to_lark

from app.extensions.forms.grammar.notations import is_gbnf

LARK_REPEAT: Final = re.compile(
    r"""("(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/)|~\s*(\d+)\s*\.\.\s*(\d+)"""
)
"""Matches a text or a pattern, to skip them, or Lark's `~1..3`, which is `{1,3}` in the library."""
GBNF_PART: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<characters>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])
    |(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)""",
    re.VERBOSE | re.DOTALL,
)
"""Matches the parts of GBNF that the library's converter reads otherwise than vLLM's backends."""
CODE_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL
)
"""Matches an escape. The library's converter knows no `\\U`, and shortens others (`\\u41`)."""
LINE_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
TEXT_ESCAPES: Final = {**LINE_ESCAPES, '"': '\\"'}
SET_ESCAPES: Final = {**LINE_ESCAPES, "[": "\\[", "]": "\\]", "^": "\\x5e", "-": "\\x2d"}
"""Characters that have a meaning, as the converter reads them, in texts and in sets."""
MAX_CODE_POINT: Final = 0x10FFFF


def lark_of(source: str) -> str:
    """Returns the Lark form of a grammar in GBNF or Lark. Raises ValueError for invalid GBNF."""
    if is_gbnf(source):
        source = gbnf_to_lark(GBNF_PART.sub(_convert_gbnf_part, source))
    return LARK_REPEAT.sub(_convert_repeat, source)


def _convert_gbnf_part(match: re.Match[str]) -> str:
    """Replaces escapes by code point, and the dots of names."""
    characters = match["characters"]
    if characters:
        escapes = TEXT_ESCAPES
        if characters.startswith("["):
            escapes = SET_ESCAPES
        return CODE_ESCAPE.sub(partial(_convert_escape, escapes), characters)
    if match["name"]:
        return match[0].replace(".", "_dot_")
    return match[0]


def _convert_escape(escapes: Mapping[str, str], match: re.Match[str]) -> str:
    """Returns the character of an escape by code point, escaped only where it must be."""
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return match[0]
    code_point = int(digits, 16)
    if code_point > MAX_CODE_POINT:
        return match[0]
    character = chr(code_point)
    if character in escapes:
        return escapes[character]
    if character.isprintable():
        return character
    return match[0]


def _convert_repeat(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    return f"{{{match[2]},{match[3]}}}"
