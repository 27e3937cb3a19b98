"""Grammars as llama.cpp and xgrammar write them: ``root ::= "yes" | "no" | [0-9]+``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.grammar.nodes import Node, OneOf, Rule, Text
from app.grammar.parsing import Parser, Times, Token

ROOT = "root"
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
NAMED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
PLAIN = [(ord("a"), ord("z")), (ord("A"), ord("Z")), (ord("0"), ord("9")), (ord(" "), ord(" "))]
"""What is written where nearly every character will do."""
LAST = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)
Ranges = list[tuple[int, int]]


class GbnfParser(Parser):
    """Reads GBNF."""

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
            return OneOf(PLAIN)
        return self.bracketed(depth, ")") if self.skip("(") else None

    def numbers(self, text: str) -> Times:
        least, comma, most = text[1:-1].replace(" ", "").partition(",")
        return int(least), int(most) if most else None if comma else int(least)

    def _text(self, token: Token) -> str:
        if "\\" not in token.text:
            return token.text[1:-1]
        return "".join(chr(point) for point, _ in self._points(token))

    def _points(self, token: Token) -> Iterator[tuple[int, bool]]:
        """The code points between the signs around them, and whether each was escaped."""
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
        return OneOf(ranges)


def _others(ranges: Ranges) -> Ranges:
    """Characters beside `ranges`: plain ones, if any are left."""
    return _without(PLAIN, ranges) or _without([(0x20, 0xD7FF), (0xE000, LAST)], ranges)


def _without(kept: Ranges, ranges: Ranges) -> Ranges:
    for first, last in ranges:
        cut = [((low, min(high, first - 1)), (max(low, last + 1), high)) for low, high in kept]
        kept = [(low, high) for pair in cut for low, high in pair if low <= high]
    return kept
