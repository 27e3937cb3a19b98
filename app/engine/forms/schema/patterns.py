"""Regular expressions of JSON Schema: searches in texts, and draws of matching texts."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random
from re import _parser  # type: ignore[attr-defined]  # the parser that re.compile uses
from time import thread_time
from typing import Any

import regex

from app.engine.forms.schema.derivation import (
    Alternation,
    Assertion,
    BackReference,
    Characters,
    Grammar,
    Group,
    IfWritten,
    Node,
    Repetition,
    Series,
    Text,
    Writer,
    Written,
)
from app.engine.forms.schema.errors import SchemaError, Unsatisfiable, WorkBudget
from app.engine.forms.schema.ranges import Ranges

LONGEST = 8192
"""Characters of the longest drawn text."""
MOST_SOURCE = 4000
"""Characters of the longest accepted pattern."""
SHORT_TEXT = 60
"""Characters of a pattern that may have the search tables of `regex`; see `_without_tables`."""
MOST_SIZE = 20_000
"""Most nodes of a pattern with its repeats written out; each costs memory to compile."""
MATCH_S = 0.01
"""Time limit of a search in seconds, against patterns with too much backtracking."""
STEP_S = 8e-6
"""Seconds of CPU time of a search that count as one step of its budget."""
TRIES = 40
EXTRA = 8
"""Most characters beyond the shortest text, for a pattern in a grammar."""
USUAL_EXTRA, MOST_EXTRA = 8, 24
"""Characters drawn beyond the shortest text, usually and after some failures."""
STEPS = 20_000
BASE_BYTES, CHARACTER_BYTES = 2_500, 110
"""Most memory of a pattern beside the library's object, and of each character; measured."""

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
"""Supported Unicode classes, approximated by their most common members."""
LONG_NAMES = {"Letter": "L", "Alphabetic": "L", "Number": "N", "Digit": "Nd", "Punctuation": "P"} | {
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Uppercase": "Lu",
    "Lowercase": "Ll",
    "Symbol": "S",
    "Separator": "Z",
}
DOUBLED = frozenset("-&~|[")
"""Signs that Python reserves when doubled within a class."""

ESCAPE = re.compile(
    r"\\(?:(?P<negated>[pP])(?P<unicode>\{[^}]*\}|\w)|u\{(?P<point>[0-9a-fA-F]{1,6})\}"
    r"|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>|(?P<end>z)|(?P<other>.))",
    re.DOTALL,
)
NAMED = re.compile(r"\(\?<(?![=!])")
VERBOSE = re.compile(r"\(\?[aiLmsu]*x")


PLAIN = string.ascii_lowercase + string.digits + string.ascii_uppercase
PRINTABLE = PLAIN + " " + string.punctuation
RARE = "\n\t\r\f\v" + "".join(map(chr, range(0xA1, 0x180))) + "".join(map(chr, range(0x4E00, 0x4E40)))
"""Characters written only where a pattern allows no others."""
RANGE_SAMPLE = 64
"""Most characters taken from a range without any of `PRINTABLE`."""

USUAL = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": PLAIN,
    "CATEGORY_WORD": PLAIN,
    "CATEGORY_NOT_WORD": "-.:/ ",
}
"""Characters written for a category."""
MEMBERS: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": lambda c: c in string.digits,
    "CATEGORY_NOT_DIGIT": lambda c: c not in string.digits,
    "CATEGORY_SPACE": lambda c: c in string.whitespace,
    "CATEGORY_NOT_SPACE": lambda c: not c.isspace(),
    "CATEGORY_WORD": lambda c: c in PLAIN or c == "_",
    "CATEGORY_NOT_WORD": lambda c: not (c.isalnum() or c == "_"),
}

NOTHING = Text("")
Tokens = Iterable[tuple[object, Any]]
"""Names and operands from Python's parser."""
Members = Sequence[tuple[str, Any]]
"""Members of a class of characters."""


def parse(translated: str) -> Node:
    """Returns the nodes of `translated`. Raises re.error, RecursionError or OverflowError for a wrong one."""
    return _Builder().run(_parser.parse(translated, re.ASCII))


class _Builder:
    """Makes nodes from the parser's tokens; anchors and boundaries add no node."""

    def __init__(self) -> None:
        self._groups: dict[int, Node] = {}

    def run(self, tokens: Tokens) -> Node:
        parts: list[Node] = []
        for name, operand in tokens:
            node = self._node(str(name), operand)
            before = parts[-1] if parts else None
            if isinstance(node, Text) and isinstance(before, Text):
                parts[-1] = Text(before.text + node.text)
            else:
                parts.append(node)
        return parts[0] if len(parts) == 1 else Series(parts)

    def _node(self, name: str, operand: Any) -> Node:
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
                return Repetition(self.run(operand[2]), int(operand[0]), int(operand[1]))
            case "ASSERT":
                return Assertion(self.run(operand[1]))
            case "GROUPREF":
                return BackReference(operand, self._groups.get(operand, NOTHING))
            case "GROUPREF_EXISTS":
                number, then, otherwise = operand
                return IfWritten(number, self.run(then), self.run(otherwise or []))
        return NOTHING

    def _class(self, members: Members) -> Node:
        if members[0][0] == "NEGATE":
            return _characters(_outside(members[1:]))
        return _characters(_within(members))

    def _group(self, number: int | None, part: Node) -> Node:
        if number is None:
            return part
        self._groups[number] = part
        return Group(number, part)


def _size(node: Node) -> int:
    """Returns the number of nodes with repeats written out."""
    match node:
        case Series(items):
            return 1 + sum(map(_size, items))
        case Alternation(options):
            return 1 + sum(map(_size, options))
        case Repetition(item, least):
            return 1 + _size(item) * max(least, 1)
        case Group(_, item) | Assertion(item):
            return 1 + _size(item)
        case IfWritten(_, then, otherwise):
            return 1 + _size(then) + _size(otherwise)
        case Text(text):
            return max(1, len(text))
    return 1


def _characters(choices: str) -> Node:
    if len(choices) == 1:
        return Text(choices)
    return Characters(choices) if choices else NOTHING


def _within(items: Members) -> str:
    """Returns characters to write for a class: its printable members, else some others."""
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
            if not 0xD800 <= point <= 0xDFFF:  # surrogates are no characters
                yield chr(point)


def _outside(items: Members) -> str:
    """Returns characters to write for all but a class: letters and digits, else rarer ones."""
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


class Pattern(str):
    """A compiled regular expression in Python's dialect; `source` is the original text.

    Raises SchemaError for a pattern that is wrong, not supported or too large.
    """

    source: str
    _engine: regex.Pattern[str]
    _grammar: Grammar

    def __new__(cls, source: str) -> Pattern:
        if len(source) > MOST_SOURCE:
            raise SchemaError(f"a pattern of {len(source)} characters is too long")
        translated = translate(source)
        pattern = super().__new__(cls, translated)
        pattern.source = source
        try:
            node = parse(translated)
            if _size(node) > MOST_SIZE:
                raise SchemaError(f"the pattern {_short(source)} repeats too much")
            pattern._grammar = Grammar({"": node}, "")
            pattern._engine = regex.compile(_without_tables(translated), regex.ASCII, cache_pattern=False)
            regex.purge()  # the library would remember every pattern
        except (re.error, regex.error) as error:
            raise SchemaError(f"the pattern {_short(source)} is not understood: {error}") from None
        except (RecursionError, OverflowError, MemoryError):
            raise SchemaError(f"the pattern {_short(source)} is too deep or too large") from None
        return pattern

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return sys.getsizeof(self._engine) + BASE_BYTES + CHARACTER_BYTES * len(self)

    @property
    def least(self) -> int:
        """Characters of the shortest full match."""
        return self._grammar.length[0]

    def found_in(self, text: str, budget: WorkBudget) -> bool:
        """Returns True when a part of `text` matches, as in JSON Schema. Raises SchemaError if too costly."""
        return self._search(text, budget, whole=False)

    def _search(self, text: str, budget: WorkBudget, whole: bool) -> bool:
        search = self._engine.fullmatch if whole else self._engine.search
        begun = thread_time()
        try:
            found = search(text, timeout=MATCH_S) is not None
            budget.spend(1 + int((thread_time() - begun) / STEP_S))
            return found
        except (TimeoutError, MemoryError):
            raise SchemaError(f"the pattern {_short(self.source)} takes too long to match") from None

    def write(
        self, rng: Random, budget: WorkBudget, least: int = 0, most: int | None = None, whole: bool = False
    ) -> str:
        """Draws a text of `least` to `most` characters with a match, a full match if `whole`.

        Raises Unsatisfiable when no text was found.
        """
        shortest, longest = self._grammar.length
        highest = min(LONGEST, LONGEST if most is None else most)
        lowest = max(shortest, least if whole else min(least, longest))
        for attempt in range(TRIES if lowest <= min(highest, longest) else 0):
            extra = USUAL_EXTRA if attempt < TRIES // 4 else MOST_EXTRA
            length = rng.randint(lowest, min(lowest + extra, highest, longest))
            text = Writer(self._grammar, rng, budget, look_around=attempt % 4 == 3).text(length)
            for padded in (text,) if len(text) >= least else _padded(text, least, rng):
                if least <= len(padded) <= highest and self._search(padded, budget, whole):
                    return padded
        raise Unsatisfiable(f"no text was found for the pattern {_short(self.source)}")


def as_node(pattern: Pattern) -> Node:
    """Returns a grammar node that writes full matches of `pattern`."""
    most = pattern.least + EXTRA

    def write(rng: Random, budget: WorkBudget, ranges: Ranges, length: int) -> str:
        return pattern.write(rng, budget, 0, min(max(length, pattern.least), most), whole=True)

    return Written(pattern.least, most, write)


def matching_text(pattern: Pattern, rng: Random, whole: bool = True) -> str:
    """Returns a full match of `pattern`, or, with `whole` false, a text that contains a match.

    Raises Unsatisfiable when no text was found.
    """
    return pattern.write(rng, WorkBudget(STEPS), whole=whole)


def _padded(text: str, length: int, rng: Random) -> tuple[str, ...]:
    """Returns `text` padded to `length` at its end, and at its start."""
    padding = "".join(rng.choices(PLAIN, k=min(length, LONGEST) - len(text)))
    return text + padding, padding + text


def _without_tables(translated: str) -> str:
    """Returns an equal pattern, for which `regex` makes no tables to search for a required literal text.

    The tables take cubic time in the literal's length (28 s for 3,900 letters), without any time limit.
    """
    if len(translated) < SHORT_TEXT:
        return translated
    end_of_comment = "\n" if VERBOSE.match(translated) else ""
    return f"(?:{translated}{end_of_comment}|(?!))"


def _short(source: str) -> str:
    return repr(source if len(source) <= 60 else source[:57] + "...")


def translate(source: str) -> str:
    """Returns `source` in Python's dialect; ``$`` is the very end. SchemaError if there is no equivalent."""
    multiline = re.match(r"\(\?[aiLsux]*m", source) is not None
    parts: list[str] = []
    at, inside = 0, False
    while at < len(source):
        taken, text, inside = _next(source, at, inside, multiline)
        parts.append(text)
        at += taken
    return "".join(parts)


def _next(source: str, at: int, inside: bool, multiline: bool) -> tuple[int, str, bool]:
    """Returns the number of characters read at `at`, their translation, and True if a class is now open."""
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
    """Reads the start of a class; the result is that of `_next`.

    In ECMA-262 ``[]`` matches nothing, and ``[^]`` everything. In Python the bracket is a member, which is
    assumed when another closing bracket follows.
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
