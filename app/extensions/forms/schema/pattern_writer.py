"""Writes random texts for parsed regular expressions."""

import string
from collections.abc import Iterator, Sequence
from random import Random
from re import _compiler, _parser  # type: ignore[attr-defined]  # what re.compile uses
from typing import Any

from app.extensions.forms.schema.bounds import WorkBudget

PLAIN = string.ascii_lowercase + string.digits + string.ascii_uppercase
PRINTABLE = PLAIN + " " + string.punctuation
RARE = (
    "\n\t\r\f\v" + "".join(map(chr, range(0xA1, 0x180))) + "".join(map(chr, range(0x4E00, 0x4E40)))
)
"""Characters written only where a pattern allows no others."""
MAX_RANGE_SAMPLE = 64
"""Maximum number of characters taken from a range without any of the above."""
REPEAT_TOKENS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
CLASS_TOKENS = ("ANY", "IN", "NOT_LITERAL")
SURROGATES = range(0xD800, 0xE000)
MAX_DEPTH = 150
"""Maximum levels of nested groups in a pattern."""

Tokens = Any
"""A parsed pattern or a part of one.

It is a sequence of tokens, with a width, as Python's parser returns it.
"""


class PatternWriter:
    """Writes texts of a wanted length.

    Assertions and references may spoil a text, so the caller checks it. `choices` caches the
    characters of classes, by the `id` of their tokens. With `asserts` the text of an assertion is
    written too.
    """

    def __init__(
        self, choices: dict[int, str], rng: Random, budget: WorkBudget, asserts: bool
    ) -> None:
        self._choices = choices
        self._rng = rng
        self._budget = budget
        self._asserts = asserts
        self._groups: dict[int, str] = {}

    def write(self, tokens: Tokens, length: int) -> str:
        """Returns a text for `tokens` of about `length` characters."""
        if len(tokens) == 1:
            return self._write_token(tokens, length)
        return self._write_series([tokens[i : i + 1] for i in range(len(tokens))], length)

    def _write_series(self, parts: Sequence[Tokens], length: int) -> str:
        self._budget.spend(1 + len(parts) // 4)
        widths = [part.getwidth() for part in parts]
        lengths = split_length(widths, length, self._rng)
        texts = map(self.write, parts, lengths)
        return "".join(texts)

    def _write_token(self, tokens: Tokens, length: int) -> str:
        name = str(tokens[0][0])
        operand = tokens[0][1]
        if name == "LITERAL":
            if operand in SURROGATES:
                return ""
            return chr(operand)
        if name in CLASS_TOKENS:
            return self._write_characters(tokens, 1)
        if name in REPEAT_TOKENS:
            min_count, max_count, item = operand
            return self._write_repeat(item, int(min_count), int(max_count), length)
        return self._write_compound(name, operand, length)

    def _write_compound(self, name: str, operand: Any, length: int) -> str:
        match name:
            case "BRANCH":
                return self._write_branch(operand[1], length)
            case "SUBPATTERN":
                text = self.write(operand[-1], length)
                if operand[0] is not None:
                    self._groups[operand[0]] = text
                return text
            case "ATOMIC_GROUP":
                return self.write(operand, length)
            case "ASSERT" if self._asserts:
                return self.write(operand[1], 0)
            case "GROUPREF":
                return self._groups.get(operand, "")
            case "GROUPREF_EXISTS":
                group, present, absent = operand
                chosen = absent
                if group in self._groups:
                    chosen = present
                if chosen is not None:
                    return self.write(chosen, length)
        return ""

    def _write_branch(self, options: Sequence[Tokens], length: int) -> str:
        widths = [option.getwidth() for option in options]
        length_limit = max(length, min(widths)[0])
        short = []
        fitting = []
        for option, (min_width, max_width) in zip(options, widths, strict=True):
            if min_width <= length_limit:
                short.append(option)
                if length_limit <= max_width:
                    fitting.append(option)
        return self.write(self._rng.choice(fitting or short), length)

    def _write_repeat(self, item: Tokens, min_count: int, max_count: int, length: int) -> str:
        min_width, max_width = item.getwidth()
        if length == 0 or max_width == 0:
            return self._write_series([item] * min(min_count, 1), 0)
        if len(item) == 1 and str(item[0][0]) in CLASS_TOKENS:
            return self._write_characters(item, length)
        low = -(-length // max_width)
        high = length
        if min_width:
            low = max(low, min_count)
            high = length // min_width
        high = max(min_count, min(max_count, high))
        low = min(low, high)
        return self._write_series([item] * self._rng.randint(low, high), length)

    def _write_characters(self, tokens: Tokens, count: int) -> str:
        """Returns `count` characters of a class; "" for a class that matches no character."""
        self._budget.spend(count // 16)
        key = id(tokens[0])
        if key not in self._choices:
            self._choices[key] = class_members(tokens)
        choices = self._choices[key]
        if choices:
            return "".join(self._rng.choices(choices, k=count))
        return ""


def split_length(widths: Sequence[tuple[int, int]], length: int, rng: Random) -> Iterator[int]:
    """Divides `length` at random among consecutive parts.

    `widths` has the minimum and maximum length of each part.
    """
    room = sum(max_width - min_width for min_width, max_width in widths)
    spare = min(length - sum(min_width for min_width, _ in widths), room)
    for min_width, max_width in widths:
        part_room = max_width - min_width
        room -= part_room
        extra = 0
        if spare > 0 and part_room:
            extra = rng.randint(max(0, spare - room), min(part_room, spare))
        spare -= extra
        yield min_width + extra


def class_members(tokens: Tokens) -> str:
    """Returns members of a character class.

    Letters and digits are preferred, then printable characters, then the first listed members.
    """
    is_match = _compiler.compile(tokens).match
    key = repr(tokens)
    is_open = "NOT_" in key or "NEGATE" in key or "ANY" in key
    tiers = [PRINTABLE, RARE]
    if is_open:
        tiers.insert(0, PLAIN)
    for tier in tiers:
        members = "".join(filter(is_match, tier))
        if members:
            return members
    members = ""
    for name, operand in tokens[0][1]:
        if str(name) == "LITERAL":
            low = high = operand
        elif str(name) == "RANGE":
            low, high = operand
        else:
            continue
        members += range_characters(low, min(high, low + MAX_RANGE_SAMPLE))
    return members


def range_characters(first: int, last: int) -> str:
    """Returns the characters from `first` to `last` (included), without surrogates."""
    points = range(first, last + 1)
    return "".join(chr(point) for point in points if point not in SURROGATES)


def expanded_size(tokens: Tokens, depth: int = 0) -> int:
    """Returns the number of tokens with repeats written out.

    Raises:
        RecursionError: The pattern is too deep.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    size = 0
    for name, operand in tokens:
        inner_size = sum(expanded_size(part, depth + 1) for part in _subpatterns(operand))
        if str(name) in REPEAT_TOKENS:
            inner_size *= max(int(operand[0]), 1)
        size += 1 + inner_size
    return size


def _subpatterns(operand: Any) -> Iterator[Tokens]:
    if isinstance(operand, _parser.SubPattern):
        yield operand
    elif isinstance(operand, (tuple, list)):
        for part in operand:
            yield from _subpatterns(part)
