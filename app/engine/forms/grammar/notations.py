"""Parsers of grammars: GBNF of llama.cpp and xgrammar, and Lark's EBNF.

``root ::= "yes" | "no" | [0-9]+`` and ``start: greeting ("," NAME)*``. Lark itself is not used: it expands
terminals within one another, and a kilobyte of nested terminals never ends.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from ast import literal_eval
from collections.abc import Iterator
from typing import NamedTuple

from app.engine.forms.schema.derivation import (
    Alternation,
    Characters,
    Node,
    Repetition,
    Rule,
    Series,
    Text,
    as_node,
)
from app.engine.forms.schema.errors import SchemaError
from app.engine.forms.schema.patterns import Pattern

DEEPEST = 60
"""Most levels of nested brackets."""
TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}
Times = tuple[int, int | None]


class Token(NamedTuple):
    """`kind` is the name of the matching group of `Parser.tokens`; the last token is of kind `end`."""

    kind: str
    text: str
    at: int


class Parser(ABC):
    """Reads rules by recursive descent. Raises SchemaError with line and column of a mistake."""

    tokens: re.Pattern[str]
    """Tokens, each in a named group; `blank` is skipped."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(self._split())
        self._at = 0

    @abstractmethod
    def rules(self) -> dict[str, Node]:
        """Returns all rules of the grammar."""

    @abstractmethod
    def item(self, depth: int) -> Node | None:
        """Returns the next node, without its repeats; None where an alternative ends."""

    @abstractmethod
    def numbers(self, text: str) -> Times:
        """Returns the least and the most repeats of a token of kind `times`."""

    def options(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise self.wrong("too many brackets in one another")
        options = [self.run(depth)]
        while self.skip("|"):
            options.append(self.run(depth))
        return options[0] if len(options) == 1 else Alternation(options)

    def run(self, depth: int) -> Node:
        items: list[Node] = []
        while (node := self.item(depth)) is not None:
            while (times := self.times()) is not None:
                node = Repetition(node, *times)
            items.append(node)
        return items[0] if len(items) == 1 else Series(items)

    def bracketed(self, depth: int, closing: str) -> Node:
        node = self.options(depth + 1)
        if not self.skip(closing):
            raise self.wrong(f"expected {closing}")
        return node

    def look(self, ahead: int = 0) -> Token:
        """Returns the token at this distance; the last one beyond the end."""
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def step(self) -> Token:
        token = self.look()
        self._at += 1
        return token

    def skip(self, sign: str) -> bool:
        """Steps over this sign; returns False, without a step, when another token is next."""
        token = self.look()
        if token.kind != "sign" or token.text != sign:
            return False
        self.step()
        return True

    def expect(self, kind: str, called: str) -> Token:
        """Steps over a token of this kind and returns the token. Raises SchemaError for another kind."""
        if self.look().kind != kind:
            raise self.wrong(f"expected {called}")
        return self.step()

    def times(self) -> Times | None:
        """Steps over repeats and returns them; None when none are next."""
        token = self.look()
        if token.kind == "sign" and token.text in TIMES:
            self.step()
            return TIMES[token.text]
        if token.kind != "times":
            return None
        self.step()
        least, most = self.numbers(token.text)
        if most is not None and most < least:
            raise self.wrong("more repeats at least than at most")
        return least, most

    def wrong(self, what: str, at: int | None = None) -> SchemaError:
        return _wrong(self._source, self.look().at if at is None else at, what)

    def _split(self) -> Iterator[Token]:
        at, source = 0, self._source
        while at < len(source):
            found = self.tokens.match(source, at)
            if found is None:
                raise _wrong(source, at, "an unexpected character")
            if found.lastgroup != "blank":
                yield Token(str(found.lastgroup), found.group(), at)
            at = found.end()
        yield Token("end", "", at)


def _wrong(source: str, at: int, what: str) -> SchemaError:
    line, column = source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)
    return SchemaError(f"line {line}, column {column}: {what}")


GBNF_ROOT = "root"
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
NAMED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
PLAIN = [(ord("a"), ord("z")), (ord("A"), ord("Z")), (ord("0"), ord("9")), (ord(" "), ord(" "))]
"""Characters written where nearly every one is allowed."""
LAST = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)
MOST_OF_RANGE = 255
"""Most characters taken from a range."""
Ranges = list[tuple[int, int]]


class GbnfParser(Parser):
    tokens = re.compile(
        r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)|(?P<define>::=)|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)
        |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\\n]|\\.)*\])
        |(?P<times>\{[ ]*\d{1,6}[ ]*(?:,[ ]*(?:\d{1,6}[ ]*)?)?\})|(?P<sign>[*+?|().])""",
        re.VERBOSE,
    )

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self.look().kind != "end":
            name = self.expect("name", "the name of a rule")
            self.expect("define", "::=")
            if name.text in found:
                raise self.wrong(f"rule {name.text!r} comes a second time", name.at)
            found[name.text] = self.options(0)
            if self.look().kind not in ("name", "end"):
                raise self.wrong("an unexpected sign")
        return found

    def item(self, depth: int) -> Node | None:
        token = self.look()
        match token.kind:
            case "name" if self.look(1).kind != "define":
                return Rule(self.step().text)
            case "text":
                self.step()
                return Text(self._text(token))
            case "set":
                return self._set(list(self._points(self.step())), token)
        if self.skip("."):
            return _one_of(PLAIN)
        return self.bracketed(depth, ")") if self.skip("(") else None

    def numbers(self, text: str) -> Times:
        least, comma, most = text[1:-1].replace(" ", "").partition(",")
        return int(least), int(most) if most else None if comma else int(least)

    def _text(self, token: Token) -> str:
        if "\\" not in token.text:
            return token.text[1:-1]
        return "".join(chr(point) for point, _ in self._points(token))

    def _points(self, token: Token) -> Iterator[tuple[int, bool]]:
        """Yields the code points between the delimiters, each with True if escaped."""
        for found in ESCAPE.finditer(token.text[1:-1]):
            *codes, named, plain = found.groups()
            if plain is not None:
                yield ord(plain), False
            elif named is not None:
                if named.isalnum() and named not in NAMED:
                    raise self.wrong(f"an unknown escape \\{named}", token.at)
                yield ord(NAMED.get(named, named)), True
            else:
                point = int(next(code for code in codes if code), 16)
                if point > LAST or point in SURROGATES:
                    raise self.wrong("an escape that is no character", token.at)
                yield point, True

    def _set(self, points: list[tuple[int, bool]], token: Token) -> Node:
        negated = points[:1] == [(ord("^"), False)]
        members = points[1:] if negated else points
        ranges: Ranges = []
        at = 0
        while at < len(members):
            first = last = members[at][0]
            if at + 2 < len(members) and members[at + 1] == (ord("-"), False):
                last, at = members[at + 2][0], at + 2
            if last < first:
                raise self.wrong("a range of characters that ends before it begins", token.at)
            ranges.append((first, last))
            at += 1
        ranges = _others(ranges) if negated else ranges
        if not ranges:
            raise self.wrong("a set without characters", token.at)
        return _one_of(ranges)


def _one_of(ranges: Ranges) -> Node:
    """Returns a node for one character of `ranges`, ends included; long ranges are cut."""
    points = [point for low, high in ranges for point in range(low, min(high, low + MOST_OF_RANGE) + 1)]
    return Characters("".join(chr(point) for point in points if point not in SURROGATES) or "?")


def _others(ranges: Ranges) -> Ranges:
    """Returns characters outside of `ranges`: plain ones, else all others."""
    return _without(PLAIN, ranges) or _without([(0x20, 0xD7FF), (0xE000, LAST)], ranges)


def _without(kept: Ranges, ranges: Ranges) -> Ranges:
    for first, last in ranges:
        cut = [((low, min(high, first - 1)), (max(low, last + 1), high)) for low, high in kept]
        kept = [(low, high) for pair in cut for low, high in pair if low <= high]
    return kept


LARK_ROOT = "start"
MOST_PATTERNS = 300
"""Most regular expressions in one grammar."""
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|[0-9]+\.[0-9]+",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|[0-9]+\.[0-9]+)",
    "NUMBER": r"[0-9]+(?:\.[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(?:\.[0-9]+)?",
    "ESCAPED_STRING": r'"[A-Za-z0-9 ]*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"\n+",
    "SH_COMMENT": r"#[A-Za-z0-9 ]*",
    "CPP_COMMENT": r"//[A-Za-z0-9 ]*",
    "C_COMMENT": r"/\*[A-Za-z0-9 ]*\*/",
    "SQL_COMMENT": r"--[A-Za-z0-9 ]*",
}
"""Patterns for the terminals of Lark's library `common`, limited to plain texts."""
IMPORT = re.compile(r"%import\s+common\s*(?:\.\s*(\w+)\s*(?:->\s*(\w+))?|\(([\w\s,]*)\))\s*")


class LarkParser(Parser):
    """Reads Lark's EBNF without templates and without imports other than from `common`."""

    tokens = re.compile(
        r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)|(?P<directive>%[^\n]*)
        |(?P<name>[!?]?[A-Za-z_][A-Za-z0-9_]*)|(?P<text>"(?:[^"\\\n]|\\.)*"i?)
        |(?P<pattern>/(?![/*])(?:[^/\\\n]|\\.)+/[imslux]*)|(?P<alias>->\s*\w+)
        |(?P<times>~\s*\d{1,6}(?:\s*\.\.\s*\d{1,6})?)|(?P<priority>\.-?\d+)|(?P<sign>\.\.|[*+?|():\[\]])""",
        re.VERBOSE,
    )

    _patterns = 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self.look().kind != "end":
            if self.look().kind == "directive":
                found |= self._directive(self.step())
                continue
            name = self.expect("name", "a rule")
            if self.look().kind == "priority":
                self.step()
            if not self.skip(":"):
                raise self.wrong("expected :")
            key = name.text.lstrip("!?")
            if key in found:
                raise self.wrong(f"{key!r} comes a second time", name.at)
            found[key] = self.options(0)
            if self.look().kind not in ("name", "directive", "end"):
                raise self.wrong("an unexpected sign")
        return found

    def run(self, depth: int) -> Node:
        node = super().run(depth)
        if self.look().kind == "alias":
            self.step()
        return node

    def item(self, depth: int) -> Node | None:
        match self.look().kind:
            case "name" if not self._begins_a_rule():
                return Rule(self.step().text)
            case "text":
                return self._text(self.step())
            case "pattern":
                return self._pattern(self.step())
        if self.skip("["):
            return Repetition(self.bracketed(depth, "]"), 0, 1)
        return self.bracketed(depth, ")") if self.skip("(") else None

    def numbers(self, text: str) -> Times:
        least, _, most = text[1:].partition("..")
        return int(least), int(most or least)

    def _begins_a_rule(self) -> bool:
        following = self.look(2) if self.look(1).kind == "priority" else self.look(1)
        return following.kind == "sign" and following.text == ":"

    def _text(self, token: Token) -> Node:
        """Returns a text, in lower case if case-insensitive, or a range of characters."""
        text = self._read(token)
        if not self.skip(".."):
            return Text(text.lower() if token.text.endswith("i") else text)
        last = self._read(self.expect("text", "the last character"))
        if len(text) != 1 or len(last) != 1 or last < text:
            raise self.wrong(f"{text!r}..{last!r} is no range of characters", token.at)
        return _one_of([(ord(text), ord(last))])

    def _read(self, token: Token) -> str:
        try:
            text: str = literal_eval(token.text.removesuffix("i"))
            text.encode()
        except (SyntaxError, ValueError):
            raise self.wrong("a text with a wrong escape", token.at) from None
        return text

    def _directive(self, token: Token) -> dict[str, Node]:
        """Returns the terminals that a line imports; none for `%ignore`, as ignored text is never written."""
        line = re.split(r"//|#", token.text)[0].strip()
        if line.startswith("%ignore"):
            return {}
        found = IMPORT.fullmatch(line)
        if found is None:
            raise self.wrong("only terminals of Lark's library common can be imported", token.at)
        one, alias, several = found.groups()
        names = {alias or one: one} if one else {name: name for name in re.findall(r"\w+", several)}
        if unknown := set(names.values()) - COMMON.keys():
            raise self.wrong(f"Lark's library common has no {min(unknown)}", token.at)
        return {name: as_node(Pattern(COMMON[source])) for name, source in names.items()}

    def _pattern(self, token: Token) -> Node:
        self._patterns += 1
        if self._patterns > MOST_PATTERNS:
            raise self.wrong("too many regular expressions", token.at)
        source, _, flags = token.text[1:].rpartition("/")
        inline = "".join(flag for flag in "imsx" if flag in flags)
        return as_node(Pattern(f"(?{inline}){source}" if inline else source))
