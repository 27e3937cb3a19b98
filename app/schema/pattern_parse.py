"""Reads a regular expression (Python's dialect) into the pieces that can write texts for it."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from re import _parser  # type: ignore[attr-defined]  # the parser that re.compile uses
from typing import Any

from app.schema.pattern_pieces import Again, Around, Characters, Either, Group, IfWritten, Piece, Repeat, Run

PLAIN = string.ascii_lowercase + string.digits + string.ascii_uppercase
PRINTABLE = PLAIN + " " + string.punctuation
RARE = "\n\t\r\f\v" + "".join(map(chr, range(0xA1, 0x180))) + "".join(map(chr, range(0x4E00, 0x4E40)))
"""Characters that are written only where nothing else is allowed."""
RANGE_SAMPLE = 64
"""Characters looked at in a range that holds none of `PRINTABLE`."""

USUAL = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": PLAIN,
    "CATEGORY_WORD": PLAIN,
    "CATEGORY_NOT_WORD": "-.:/ ",
}
"""What is written for a category."""
MEMBERS: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": lambda c: c in string.digits,
    "CATEGORY_NOT_DIGIT": lambda c: c not in string.digits,
    "CATEGORY_SPACE": lambda c: c in string.whitespace,
    "CATEGORY_NOT_SPACE": lambda c: not c.isspace(),
    "CATEGORY_WORD": lambda c: c in PLAIN or c == "_",
    "CATEGORY_NOT_WORD": lambda c: not (c.isalnum() or c == "_"),
}

Tokens = Iterable[tuple[Any, Any]]


def parse(translated: str) -> Piece:
    """The pieces of `translated`; raises re.error, RecursionError or OverflowError when it is none."""
    return _Builder().run(_parser.parse(translated, re.ASCII))


class _Builder:
    def __init__(self) -> None:
        self.groups: dict[int, Piece] = {}

    def run(self, tokens: Tokens) -> Piece:
        parts = [self.piece(str(name), operand) for name, operand in tokens]
        return parts[0] if len(parts) == 1 else Run(parts)

    def piece(self, name: str, operand: Any) -> Piece:
        build = self.BUILDERS.get(name)
        return build(self, operand) if build else Piece()

    def _in(self, items: Sequence[tuple[Any, Any]]) -> Piece:
        named = [(str(name), operand) for name, operand in items]
        if named[0][0] == "NEGATE":
            return _characters(_outside(named[1:]))
        return _characters(_within(named))

    def _branch(self, operand: tuple[Any, list[Tokens]]) -> Piece:
        return Either([self.run(option) for option in operand[1]])

    def _group(self, operand: tuple[int | None, int, int, Tokens]) -> Piece:
        number, _, _, tokens = operand
        part = self.run(tokens)
        if number is None:
            return part
        self.groups[number] = part
        return Group(part, number)

    def _repeat(self, operand: tuple[Any, Any, Tokens]) -> Piece:
        fewest, highest, tokens = operand
        return Repeat(self.run(tokens), int(fewest), int(highest))

    def _assert(self, operand: tuple[int, Tokens]) -> Piece:
        return Around(self.run(operand[1]))

    def _again(self, number: int) -> Piece:
        return Again(number, self.groups.get(number))

    def _if_written(self, operand: tuple[int, Tokens, Tokens | None]) -> Piece:
        number, then, otherwise = operand
        return IfWritten(number, self.run(then), self.run(otherwise or []))

    BUILDERS: dict[str, Callable[[_Builder, Any], Piece]] = {
        "LITERAL": lambda self, point: _characters(_within([("LITERAL", point)])),
        "NOT_LITERAL": lambda self, point: _characters(_outside([("LITERAL", point)])),
        "ANY": lambda self, operand: _characters(PLAIN),
        "IN": _in,
        "BRANCH": _branch,
        "SUBPATTERN": _group,
        "ATOMIC_GROUP": lambda self, tokens: self.run(tokens),
        "MAX_REPEAT": _repeat,
        "MIN_REPEAT": _repeat,
        "POSSESSIVE_REPEAT": _repeat,
        "ASSERT": _assert,
        "GROUPREF": _again,
        "GROUPREF_EXISTS": _if_written,
    }


def _characters(choices: str) -> Piece:
    return Characters(choices) if choices else Piece()


def _within(items: Sequence[tuple[str, Any]]) -> str:
    """What to write for a class: its printable members, else some of the others."""
    listed = [item for item in items if item[0] != "CATEGORY"]
    chosen = [c for c in PRINTABLE if _has(listed, c)]
    for name, operand in items:
        if name == "CATEGORY":
            chosen += USUAL[str(operand)]
    return "".join(dict.fromkeys(chosen)) or "".join(_unprintable(items))


def _unprintable(items: Sequence[tuple[str, Any]]) -> Iterable[str]:
    for name, operand in items:
        low, high = operand if name == "RANGE" else (operand, operand)
        for point in range(low, min(high, low + RANGE_SAMPLE) + 1):
            if not 0xD800 <= point <= 0xDFFF:  # half a surrogate pair is no character
                yield chr(point)


def _outside(items: Sequence[tuple[str, Any]]) -> str:
    """What to write for all but a class: letters and digits, else rarer characters."""
    for candidates in (PLAIN, PRINTABLE, RARE):
        chosen = "".join(c for c in candidates if not _has(items, c))
        if chosen:
            return chosen
    return PLAIN


def _has(items: Sequence[tuple[str, Any]], character: str) -> bool:
    point = ord(character)
    for name, operand in items:
        if name == "CATEGORY":
            if MEMBERS[str(operand)](character):
                return True
        elif name == "RANGE":
            if operand[0] <= point <= operand[1]:
                return True
        elif operand == point:
            return True
    return False
