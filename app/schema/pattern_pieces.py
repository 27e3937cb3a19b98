"""What a regular expression consists of, each piece able to write a text of a wanted length.

Every piece knows its shortest and longest text (`least`, `most`, in characters; `most` is at most
`LONGEST`), so a length is shared out among the pieces instead of being hoped for. What no piece
can promise (look-around, boundaries, back references of another length) is left to the check that
follows: see `pattern.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from app.schema.errors import Allowance

LONGEST = 8192
"""Characters of the longest text that is written."""


class Pen:
    """A text on its way, with the groups written so far."""

    def __init__(self, rng: Random, allowance: Allowance, look_around: bool) -> None:
        self.rng = rng
        self.allowance = allowance
        self.look_around = look_around
        self.groups: dict[int, str] = {}
        self.parts: list[str] = []


class Piece:
    """Writes nothing: anchors, boundaries and negative look-around."""

    least = 0
    most = 0
    size = 1

    def write(self, length: int, pen: Pen) -> None:
        """Write about `length` characters, `least` to `most`."""


class Characters(Piece):
    """One of `choices`."""

    least = most = 1

    def __init__(self, choices: str) -> None:
        self.choices = choices

    def write(self, length: int, pen: Pen) -> None:
        pen.parts.append(pen.rng.choice(self.choices))


class Run(Piece):
    """`parts`, one after the other."""

    def __init__(self, parts: Sequence[Piece]) -> None:
        self.parts = parts
        self.least = min(sum(part.least for part in parts), LONGEST + 1)
        self.most = min(sum(part.most for part in parts), LONGEST)
        self.size = 1 + sum(part.size for part in parts)

    def write(self, length: int, pen: Pen) -> None:
        pen.allowance.spend(1 + len(self.parts) // 4)
        spare = max(length - self.least, 0)
        room = sum(part.most - part.least for part in self.parts)
        for part in self.parts:
            own = part.most - part.least
            room -= own
            extra = pen.rng.randint(max(0, spare - room), min(own, spare)) if spare and own else 0
            part.write(part.least + extra, pen)
            spare -= extra


class Either(Piece):
    """One of `options`."""

    def __init__(self, options: Sequence[Piece]) -> None:
        self.options = options
        self.least = min(option.least for option in options)
        self.most = max(option.most for option in options)
        self.size = 1 + sum(option.size for option in options)

    def write(self, length: int, pen: Pen) -> None:
        pen.allowance.spend()
        fitting = [option for option in self.options if option.least <= length <= option.most]
        option = pen.rng.choice(fitting or self.options)
        option.write(min(max(length, option.least), option.most), pen)


class Repeat(Piece):
    """`part`, `fewest` to `highest` times."""

    def __init__(self, part: Piece, fewest: int, highest: int) -> None:
        self.part, self.fewest, self.highest = part, fewest, highest
        self.least = min(part.least * fewest, LONGEST + 1)
        self.most = min(part.most * highest, LONGEST)
        self.size = 1 + part.size * max(fewest, 1)

    def write(self, length: int, pen: Pen) -> None:
        part = self.part
        if isinstance(part, Characters):
            pen.allowance.spend(1 + length // 16)
            pen.parts.extend(pen.rng.choices(part.choices, k=length))
            return
        times = self._times(length, pen.rng)
        for left in range(times, 0, -1):
            pen.allowance.spend()
            lowest = max(part.least, length - (left - 1) * part.most)
            own = pen.rng.randint(lowest, max(lowest, min(part.most, length - (left - 1) * part.least)))
            part.write(min(own, part.most), pen)
            length -= own

    def _times(self, length: int, rng: Random) -> int:
        """How often, so that `length` can be reached; parts that may be empty are written only if needed."""
        part = self.part
        if part.most == 0 or length == 0:
            return min(self.fewest, 1)
        lowest = max(self.fewest if part.least else 0, -(-length // part.most))
        highest = min(self.highest, length // part.least if part.least else length)
        return rng.randint(lowest, highest) if lowest < highest else lowest


class Group(Piece):
    """`part`, remembered under `number`."""

    def __init__(self, part: Piece, number: int) -> None:
        self.part, self.number = part, number
        self.least, self.most, self.size = part.least, part.most, 1 + part.size

    def write(self, length: int, pen: Pen) -> None:
        start = len(pen.parts)
        self.part.write(length, pen)
        pen.groups[self.number] = "".join(pen.parts[start:])


class Again(Piece):
    """What group `number` has written."""

    def __init__(self, number: int, group: Piece | None) -> None:
        self.number = number
        self.least = group.least if group else 0
        self.most = group.most if group else 0

    def write(self, length: int, pen: Pen) -> None:
        text = pen.groups.get(self.number, "")
        pen.allowance.spend(1 + len(text) // 64)
        pen.parts.append(text)


class IfWritten(Piece):
    """`then` if group `number` has been written, else `otherwise`."""

    def __init__(self, number: int, then: Piece, otherwise: Piece) -> None:
        self.number, self.then, self.otherwise = number, then, otherwise
        self.least, self.most = min(then.least, otherwise.least), max(then.most, otherwise.most)
        self.size = 1 + then.size + otherwise.size

    def write(self, length: int, pen: Pen) -> None:
        part = self.then if self.number in pen.groups else self.otherwise
        part.write(min(max(length, part.least), part.most), pen)


class Around(Piece):
    """What must follow or precede: usually other pieces write it by chance, else it is written out."""

    def __init__(self, part: Piece) -> None:
        self.part = part
        self.size = 1 + part.size

    def write(self, length: int, pen: Pen) -> None:
        if pen.look_around:
            self.part.write(self.part.least, pen)
