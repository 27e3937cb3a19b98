"""What the two notations of grammars have in common: tokens, alternatives, runs and repeats."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from app.grammar.nodes import Alternation, Node, Repetition, Series
from app.schema.errors import SchemaError

DEEPEST = 60
"""Brackets in one another."""
TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}
Times = tuple[int, int | None]


class Token(NamedTuple):
    """`kind` is the name of the group that matched it; the last token of all is of kind `end`."""

    kind: str
    text: str
    at: int


class Parser(ABC):
    """Reads rules by recursive descent. SchemaError says where the source is wrong."""

    tokens: re.Pattern[str]
    """What there is, each in a named group; `blank` is skipped."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(self._split())
        self._at = 0

    @abstractmethod
    def rules(self) -> dict[str, Node]:
        """All rules of the grammar."""

    @abstractmethod
    def item(self, depth: int) -> Node | None:
        """What repeats belong to; None where an alternative ends."""

    @abstractmethod
    def numbers(self, text: str) -> Times:
        """The least and the most repeats that a token of kind `times` tells."""

    def options(self, depth: int) -> Node:
        """Alternatives, down to what ends them."""
        if depth > DEEPEST:
            raise self.wrong("too many brackets in one another")
        options = [self.run(depth)]
        while self.skip("|"):
            options.append(self.run(depth))
        return options[0] if len(options) == 1 else Alternation(options)

    def run(self, depth: int) -> Node:
        """One alternative."""
        items: list[Node] = []
        while (node := self.item(depth)) is not None:
            while (times := self.times()) is not None:
                node = Repetition(node, *times)
            items.append(node)
        return items[0] if len(items) == 1 else Series(items)

    def bracketed(self, depth: int, closing: str) -> Node:
        """Alternatives in a bracket that is open."""
        node = self.options(depth + 1)
        if not self.skip(closing):
            raise self.wrong(f"expected {closing}")
        return node

    def look(self, ahead: int = 0) -> Token:
        """A token further on; the last one of all beyond the end."""
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def step(self) -> Token:
        """The next token, which is left behind."""
        token = self.look()
        self._at += 1
        return token

    def skip(self, sign: str) -> bool:
        """Step over this sign, if it is next."""
        token = self.look()
        if token.kind != "sign" or token.text != sign:
            return False
        self.step()
        return True

    def expect(self, kind: str, called: str) -> Token:
        """The next token, which is of this kind."""
        if self.look().kind != kind:
            raise self.wrong(f"expected {called}")
        return self.step()

    def times(self) -> Times | None:
        """The repeats that are written next; None when there are none."""
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
        """`what` is wrong, and where."""
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
