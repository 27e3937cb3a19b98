"""Regular expressions of JSON Schema: searches in texts, and draws of matching texts."""

import re
import string
import sys
from collections.abc import Iterator, Sequence
from random import Random
from re import _compiler, _parser  # type: ignore[attr-defined]  # what re.compile uses
from time import thread_time
from typing import Any

import regex

from app.engine.forms.schema.bounds import SchemaError, Unsatisfiable, WorkBudget

LONGEST = 8192
"""Characters of the longest drawn text."""
MOST_SOURCE = 4000
"""Characters of the longest accepted pattern."""
SHORT_TEXT = 60
"""Characters of a pattern that may have the search tables of `regex`; see `_without_tables`."""
MOST_SIZE = 20_000
"""Most tokens of a pattern with its repeats written out; each costs memory to compile."""
DEEPEST = 150
MATCH_S = 0.01
"""Time limit of a search in seconds, against patterns with too much backtracking."""
STEP_S = 8e-6
"""Seconds of CPU time of a search that count as one step of its budget."""
TRIES = 40
USUAL_EXTRA, MOST_EXTRA = 8, 24
"""Characters drawn beyond the shortest text, usually and after some failures."""
BASE_BYTES, CHARACTER_BYTES = 2_500, 350
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
LONG_NAMES = {
    "Letter": "L",
    "Alphabetic": "L",
    "Number": "N",
    "Digit": "Nd",
    "Punctuation": "P",
} | {
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
RARE = (
    "\n\t\r\f\v" + "".join(map(chr, range(0xA1, 0x180))) + "".join(map(chr, range(0x4E00, 0x4E40)))
)
"""Characters written only where a pattern allows no others."""
SAMPLE = 64
"""Most characters taken from a range without any of the above."""
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
CHARACTERS = ("ANY", "IN", "NOT_LITERAL")
SURROGATES = range(0xD800, 0xE000)
Tokens = Any
"""A parsed pattern or a part of one:

a sequence of tokens, with a width, as Python's parser returns it.
"""


def _size(tokens: Tokens, depth: int = 0) -> int:
    """Returns the number of tokens with repeats written out.

    Raises RecursionError for a deep pattern.
    """
    if depth > DEEPEST:
        raise RecursionError
    size = 0
    for name, operand in tokens:
        inner = sum(_size(part, depth + 1) for part in _patterns_in(operand))
        size += 1 + inner * (max(int(operand[0]), 1) if str(name) in REPEATS else 1)
    return size


def _patterns_in(operand: Any) -> Iterator[Tokens]:
    if isinstance(operand, _parser.SubPattern):
        yield operand
    elif isinstance(operand, (tuple, list)):
        for each in operand:
            yield from _patterns_in(each)


def shares(widths: Sequence[tuple[int, int]], length: int, rng: Random) -> Iterator[int]:
    """Divides `length` at random among consecutive parts; `widths` has their least and most
    lengths.
    """
    room = sum(most - least for least, most in widths)
    spare = min(length - sum(least for least, _ in widths), room)
    for least, most in widths:
        own = most - least
        room -= own
        extra = rng.randint(max(0, spare - room), min(own, spare)) if spare > 0 and own else 0
        spare -= extra
        yield least + extra


class _Writer:
    """Writes texts of a wanted length; assertions and references may spoil one, which is checked
    later.
    """

    def __init__(
        self, choices: dict[int, str], rng: Random, budget: WorkBudget, asserts: bool
    ) -> None:
        self._rng, self._budget, self._asserts = rng, budget, asserts
        self._choices = choices
        """Characters of the classes met so far, by the `id` of their tokens."""
        self._groups: dict[int, str] = {}

    def text(self, tokens: Tokens, length: int) -> str:
        if len(tokens) == 1:
            return self._token(tokens, length)
        return self._series([tokens[at : at + 1] for at in range(len(tokens))], length)

    def _series(self, parts: Sequence[Tokens], length: int) -> str:
        self._budget.spend(1 + len(parts) // 4)
        lengths = shares([part.getwidth() for part in parts], length, self._rng)
        return "".join([self.text(part, own) for part, own in zip(parts, lengths, strict=True)])

    def _token(self, tokens: Tokens, length: int) -> str:
        name, operand = str(tokens[0][0]), tokens[0][1]
        match name:
            case "LITERAL":
                return "" if operand in SURROGATES else chr(operand)
            case "ANY" | "IN" | "NOT_LITERAL":
                return self._characters(tokens, 1)
            case "BRANCH":
                widths = [option.getwidth() for option in operand[1]]
                longest = max(length, min(widths)[0])
                short = [at for at, (least, _) in enumerate(widths) if least <= longest]
                fitting = [at for at in short if longest <= widths[at][1]]
                return self.text(operand[1][self._rng.choice(fitting or short)], length)
            case "SUBPATTERN":
                text = self.text(operand[-1], length)
                if operand[0] is not None:
                    self._groups[operand[0]] = text
                return text
            case "ATOMIC_GROUP":
                return self.text(operand, length)
            case "ASSERT" if self._asserts:
                return self.text(operand[1], 0)
            case "GROUPREF":
                return self._groups.get(operand, "")
            case "GROUPREF_EXISTS":
                chosen = operand[1] if operand[0] in self._groups else operand[2]
                return "" if chosen is None else self.text(chosen, length)
        return self._repeated(operand[2], operand, length) if name in REPEATS else ""

    def _repeated(self, item: Tokens, limits: tuple[int, int, Tokens], length: int) -> str:
        least, most = int(limits[0]), int(limits[1])
        shortest, longest = item.getwidth()
        if length == 0 or longest == 0:
            return self._series([item] * min(least, 1), 0)
        if len(item) == 1 and str(item[0][0]) in CHARACTERS:
            return self._characters(item, length)
        highest = max(least, min(most, length // shortest if shortest else length))
        lowest = min(max(least if shortest else 0, -(-length // longest)), highest)
        return self._series([item] * self._rng.randint(lowest, highest), length)

    def _characters(self, tokens: Tokens, count: int) -> str:
        """Returns `count` characters of a class; none of a class without any."""
        self._budget.spend(count // 16)
        key = id(tokens[0])
        if key not in self._choices:
            self._choices[key] = _choices(tokens)
        choices = self._choices[key]
        return "".join(self._rng.choices(choices, k=count)) if choices else ""


def _choices(tokens: Tokens) -> str:
    """Returns characters of a class: letters and digits if there are any, else listed members."""
    matches, key = _compiler.compile(tokens).match, repr(tokens)
    is_open = "NOT_" in key or "NEGATE" in key or "ANY" in key
    tiers = (PLAIN, PRINTABLE, RARE) if is_open else (PRINTABLE, RARE)
    for tier in tiers:
        if found := "".join(filter(matches, tier)):
            return found
    for name, operand in tokens[0][1]:  # the first members of the class, as far as they are listed
        if str(name) in ("LITERAL", "RANGE"):
            low, high = operand if str(name) == "RANGE" else (operand, operand)
            points = range(low, min(high, low + SAMPLE) + 1)
            found += "".join(chr(point) for point in points if point not in SURROGATES)
    return found


class Pattern(str):
    """A compiled regular expression in Python's dialect.

    Raises SchemaError for one that cannot be used.
    """

    source: str
    size_bytes: int
    least: int
    """Characters of the shortest full match."""
    _engine: regex.Pattern[str]
    _tokens: Tokens
    _choices: dict[int, str]

    def __new__(cls, source: str) -> "Pattern":
        if len(source) > MOST_SOURCE:
            raise SchemaError(f"a pattern of {len(source)} characters is too long")
        translated = translate(source)
        pattern = super().__new__(cls, translated)
        pattern.source = source
        pattern._choices = {}
        try:
            pattern._tokens = _parser.parse(translated, re.ASCII)
            pattern.least = pattern._tokens.getwidth()[0]
            if _size(pattern._tokens) > MOST_SIZE:
                raise SchemaError(f"the pattern {_short(source)} repeats too much")
            pattern._engine = regex.compile(
                _without_tables(translated), regex.ASCII, cache_pattern=False
            )
            regex.purge()  # the library would remember every pattern
        except (re.error, regex.error) as error:
            raise SchemaError(f"the pattern {_short(source)} is not understood: {error}") from None
        except (RecursionError, OverflowError, MemoryError):
            raise SchemaError(f"the pattern {_short(source)} is too deep or too large") from None
        pattern.size_bytes = (
            sys.getsizeof(pattern._engine) + BASE_BYTES + CHARACTER_BYTES * len(pattern)
        )
        return pattern

    def found_in(self, text: str, budget: WorkBudget, whole: bool = False) -> bool:
        """Returns True when a part of `text` matches, or the `whole`.

        Raises SchemaError if too costly.
        """
        search = self._engine.fullmatch if whole else self._engine.search
        begun = thread_time()
        try:
            found = search(text, timeout=MATCH_S) is not None
            budget.spend(1 + int((thread_time() - begun) / STEP_S))
            return found
        except (TimeoutError, MemoryError):
            raise SchemaError(
                f"the pattern {_short(self.source)} takes too long to match"
            ) from None

    def write(
        self,
        rng: Random,
        budget: WorkBudget,
        least: int = 0,
        most: int = LONGEST,
        whole: bool = False,
    ) -> str:
        """Draws a text of `least` to `most` characters with a (`whole`) match.

        Raises Unsatisfiable.
        """
        shortest, longest = self._tokens.getwidth()
        highest = min(LONGEST, most)
        lowest = max(shortest, least if whole else min(least, longest))
        for attempt in range(TRIES if lowest <= min(highest, longest) else 0):
            extra = USUAL_EXTRA if attempt < TRIES // 4 else MOST_EXTRA
            length = rng.randint(lowest, min(lowest + extra, highest, longest))
            writer = _Writer(self._choices, rng, budget, asserts=attempt % 4 == 3)
            text = writer.text(self._tokens, length)
            padding = "".join(rng.choices(PLAIN, k=min(least, LONGEST) - len(text)))
            for padded in dict.fromkeys((text + padding, padding + text)):
                if least <= len(padded) <= highest and self.found_in(padded, budget, whole):
                    return padded
        raise Unsatisfiable(f"no text was found for the pattern {_short(self.source)}")


def characters(source: str) -> str:
    """Returns characters of the class ``[...]`` in `source`.

    Raises SchemaError for a wrong class.
    """
    try:
        tokens = _parser.parse(translate(source), re.ASCII)
    except re.error as error:
        raise SchemaError(str(error)) from None
    name, operand = str(tokens[0][0]), tokens[0][1]
    if name == "LITERAL":
        return "" if operand in SURROGATES else chr(operand)
    return _choices(tokens) if name in CHARACTERS else ""


def _without_tables(translated: str) -> str:
    """Returns an equal pattern without the search tables of `regex`:

    28 s for a literal of 3,900 letters.
    """
    if len(translated) < SHORT_TEXT:
        return translated
    end_of_comment = "\n" if VERBOSE.match(translated) else ""
    return f"(?:{translated}{end_of_comment}|(?!))"


def _short(source: str) -> str:
    return repr(source if len(source) <= 60 else source[:57] + "...")


def translate(source: str) -> str:
    """Returns `source` in Python's dialect; ``$`` is the very end. SchemaError if there is no
    equivalent.

    In ECMA-262 ``[]`` matches nothing, and ``[^]`` everything. In Python the bracket is a member,
    which is assumed when another closing bracket follows.
    """
    multiline = re.match(r"\(\?[aiLsux]*m", source) is not None
    parts: list[str] = []
    at, inside = 0, False
    while at < len(source):
        text = source[at]
        found = ESCAPE.match(source, at) if text == "\\" else None
        taken = len(found.group()) if found else 1
        if found:
            text = _escape(found, inside)
        elif text == "\\":
            raise SchemaError("the pattern ends with a backslash")
        elif inside:
            inside = text != "]"
            doubled = text == "[" or (text in DOUBLED and source[at - 1] == text)
            text = "\\" + text if doubled else text
        elif text == "[":
            text = "[^" if source.startswith("[^", at) else "["
            taken, inside = len(text), True
            if source.startswith("]", at + taken):
                taken += 1
                inside = "]" in source[at + taken :]
                text = text + r"\]" if inside else r"[\s\S]" if text == "[^" else "(?!)"
        elif text == "$" and not multiline:
            text = r"\Z"
        elif NAMED.match(source, at):
            text, taken = "(?P<", 3
        parts.append(text)
        at += taken
    return "".join(parts)


def _escape(found: re.Match[str], inside: bool) -> str:
    if found["unicode"]:
        name, negated = found["unicode"].strip("{}").split("=")[-1], found["negated"] == "P"
        members = CLASSES.get(LONG_NAMES.get(name, name))
        if members is None or (negated and inside):
            raise SchemaError(
                f"the pattern uses the Unicode class {name!r} in a way that is not supported"
            )
        return members if inside else f"[{'^' if negated else ''}{members}]"
    if found["point"]:
        return _literal(int(found["point"], 16))
    if found["high"]:
        return _literal(
            0x10000 + (int(found["high"], 16) % 0x400 << 10) + int(found["low"], 16) % 0x400
        )
    if found["control"]:
        return _literal(ord(found["control"].upper()) - 64)
    if found["back"]:
        return f"(?P={found['back']})"
    return r"\Z" if found["end"] and not inside else found.group()


def _literal(point: int) -> str:
    if point > 0x10FFFF:
        raise SchemaError("the pattern names a character beyond Unicode")
    return f"\\U{point:08x}"
