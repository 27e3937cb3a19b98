"""What a regular expression consists of, each piece able to write a text of a wanted length.

Every piece knows its shortest and longest text (`least`, `most`, in characters; `most` is at most
`LONGEST`), so a length is shared out among the pieces instead of being hoped for. What no piece
can promise (look-around, boundaries, back references of another length) is left to the check that
follows: see `patterns.py`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from random import Random
from re import _parser  # type: ignore[attr-defined]  # the parser that re.compile uses
from typing import Any

from app.schema.errors import WorkBudget

LONGEST = 8192
"""Characters of the longest text that is written."""


class PatternText:
    """A text that is being written, with its groups so far."""

    def __init__(self, rng: Random, budget: WorkBudget, look_around: bool) -> None:
        self.rng = rng
        self.budget = budget
        self.look_around = look_around
        self.groups: dict[int, str] = {}
        self.parts: list[str] = []


class PatternPiece:
    """Writes nothing: anchors, boundaries and negative look-around."""

    least = 0
    most = 0
    size = 1

    def write(self, length: int, out: PatternText) -> None:
        """Write about `length` characters, `least` to `most`."""


class Characters(PatternPiece):
    least = most = 1

    def __init__(self, choices: str) -> None:
        self.choices = choices

    def write(self, length: int, out: PatternText) -> None:
        out.parts.append(out.rng.choice(self.choices))


class Series(PatternPiece):
    def __init__(self, parts: Sequence[PatternPiece]) -> None:
        self.parts = parts
        self.least = min(sum(part.least for part in parts), LONGEST + 1)
        self.most = min(sum(part.most for part in parts), LONGEST)
        self.size = 1 + sum(part.size for part in parts)

    def write(self, length: int, out: PatternText) -> None:
        out.budget.spend(1 + len(self.parts) // 4)
        spare = max(length - self.least, 0)
        room = sum(part.most - part.least for part in self.parts)
        for part in self.parts:
            own = part.most - part.least
            room -= own
            extra = out.rng.randint(max(0, spare - room), min(own, spare)) if spare and own else 0
            part.write(part.least + extra, out)
            spare -= extra


class Alternation(PatternPiece):
    def __init__(self, options: Sequence[PatternPiece]) -> None:
        self.options = options
        self.least = min(option.least for option in options)
        self.most = max(option.most for option in options)
        self.size = 1 + sum(option.size for option in options)

    def write(self, length: int, out: PatternText) -> None:
        out.budget.spend()
        fitting = [option for option in self.options if option.least <= length <= option.most]
        option = out.rng.choice(fitting or self.options)
        option.write(min(max(length, option.least), option.most), out)


class Repeat(PatternPiece):
    """`part`, `fewest` to `highest` times."""

    def __init__(self, part: PatternPiece, fewest: int, highest: int) -> None:
        self.part, self.fewest, self.highest = part, fewest, highest
        self.least = min(part.least * fewest, LONGEST + 1)
        self.most = min(part.most * highest, LONGEST)
        self.size = 1 + part.size * max(fewest, 1)

    def write(self, length: int, out: PatternText) -> None:
        part = self.part
        if isinstance(part, Characters):
            out.budget.spend(1 + length // 16)
            out.parts.extend(out.rng.choices(part.choices, k=length))
            return
        times = self._times(length, out.rng)
        for left in range(times, 0, -1):
            out.budget.spend()
            lowest = max(part.least, length - (left - 1) * part.most)
            own = out.rng.randint(lowest, max(lowest, min(part.most, length - (left - 1) * part.least)))
            part.write(min(own, part.most), out)
            length -= own

    def _times(self, length: int, rng: Random) -> int:
        """How often, so that `length` can be reached; parts that may be empty are written only if needed."""
        part = self.part
        if part.most == 0 or length == 0:
            return min(self.fewest, 1)
        lowest = max(self.fewest if part.least else 0, -(-length // part.most))
        highest = min(self.highest, length // part.least if part.least else length)
        return rng.randint(lowest, highest) if lowest < highest else lowest


class Group(PatternPiece):
    """`part`, remembered under `number`."""

    def __init__(self, part: PatternPiece, number: int) -> None:
        self.part, self.number = part, number
        self.least, self.most, self.size = part.least, part.most, 1 + part.size

    def write(self, length: int, out: PatternText) -> None:
        start = len(out.parts)
        self.part.write(length, out)
        out.groups[self.number] = "".join(out.parts[start:])


class BackReference(PatternPiece):
    def __init__(self, number: int, group: PatternPiece | None) -> None:
        self.number = number
        self.least = group.least if group else 0
        self.most = group.most if group else 0

    def write(self, length: int, out: PatternText) -> None:
        text = out.groups.get(self.number, "")
        out.budget.spend(1 + len(text) // 64)
        out.parts.append(text)


class IfWritten(PatternPiece):
    """`then` if group `number` has been written, else `otherwise`."""

    def __init__(self, number: int, then: PatternPiece, otherwise: PatternPiece) -> None:
        self.number, self.then, self.otherwise = number, then, otherwise
        self.least, self.most = min(then.least, otherwise.least), max(then.most, otherwise.most)
        self.size = 1 + then.size + otherwise.size

    def write(self, length: int, out: PatternText) -> None:
        part = self.then if self.number in out.groups else self.otherwise
        part.write(min(max(length, part.least), part.most), out)


class Assertion(PatternPiece):
    """What must follow or precede: usually other pieces write it by chance, else it is written out."""

    def __init__(self, part: PatternPiece) -> None:
        self.part = part
        self.size = 1 + part.size

    def write(self, length: int, out: PatternText) -> None:
        if out.look_around:
            self.part.write(self.part.least, out)


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

Tokens = Iterable[tuple[object, Any]]
"""Names and operands, as Python's own parser tells them."""
Members = Sequence[tuple[str, Any]]
"""Those of a class of characters."""


def parse(translated: str) -> PatternPiece:
    """The pieces of `translated`; raises re.error, RecursionError or OverflowError when it is none."""
    return _Builder().run(_parser.parse(translated, re.ASCII))


class _Builder:
    """Makes pieces of what the parser tells; anchors and boundaries write nothing."""

    def __init__(self) -> None:
        self._groups: dict[int, PatternPiece] = {}

    def run(self, tokens: Tokens) -> PatternPiece:
        parts = [self._piece(str(name), operand) for name, operand in tokens]
        return parts[0] if len(parts) == 1 else Series(parts)

    def _piece(self, name: str, operand: Any) -> PatternPiece:
        match name:
            case "LITERAL":
                return _characters("".join(_unprintable([(name, operand)])))
            case "NOT_LITERAL":
                return _characters(_outside([("LITERAL", operand)]))
            case "ANY":
                return _characters(PLAIN)
            case "IN":
                return self._class([(str(kind), member) for kind, member in operand])
            case "BRANCH":
                return Alternation([self.run(option) for option in operand[1]])
            case "SUBPATTERN":
                return self._group(operand[0], self.run(operand[-1]))
            case "ATOMIC_GROUP":
                return self.run(operand)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return Repeat(self.run(operand[2]), int(operand[0]), int(operand[1]))
            case "ASSERT":
                return Assertion(self.run(operand[1]))
            case "GROUPREF":
                return BackReference(operand, self._groups.get(operand))
            case "GROUPREF_EXISTS":
                number, then, otherwise = operand
                return IfWritten(number, self.run(then), self.run(otherwise or []))
        return PatternPiece()

    def _class(self, members: Members) -> PatternPiece:
        if members[0][0] == "NEGATE":
            return _characters(_outside(members[1:]))
        return _characters(_within(members))

    def _group(self, number: int | None, part: PatternPiece) -> PatternPiece:
        if number is None:
            return part
        self._groups[number] = part
        return Group(part, number)


def _characters(choices: str) -> PatternPiece:
    return Characters(choices) if choices else PatternPiece()


def _within(items: Members) -> str:
    """What to write for a class: its printable members, else some of the others."""
    listed = [item for item in items if item[0] != "CATEGORY"]
    chosen = [c for c in PRINTABLE if _has(listed, c)]
    for name, operand in items:
        if name == "CATEGORY":
            chosen += USUAL[str(operand)]
    return "".join(dict.fromkeys(chosen)) or "".join(_unprintable(items))


def _unprintable(items: Members) -> Iterable[str]:
    for name, operand in items:
        low, high = operand if name == "RANGE" else (operand, operand)
        for point in range(low, min(high, low + RANGE_SAMPLE) + 1):
            if not 0xD800 <= point <= 0xDFFF:  # half a surrogate pair is no character
                yield chr(point)


def _outside(items: Members) -> str:
    """What to write for all but a class: letters and digits, else rarer characters."""
    for candidates in (PLAIN, PRINTABLE, RARE):
        chosen = "".join(c for c in candidates if not _has(items, c))
        if chosen:
            return chosen
    return PLAIN


def _has(items: Members, character: str) -> bool:
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
