"""Base of the parsers of grammar notations: tokens, rules and repeats."""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from app.extensions.forms.schema.bounds import SchemaError
from app.extensions.forms.schema.derivation import (
    Alternation,
    DerivationRule,
    Node,
    Repetition,
    Series,
)

MAX_DEPTH = 60
"""Maximum levels of nested brackets."""

Limits: TypeAlias = tuple[int, int | None]
"""Minimum and maximum number of repeats; None is no limit."""
REPEAT_SIGNS: dict[str, Limits] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Token(NamedTuple):
    """A token of a grammar.

    `kind` is the name of the matching group of `GrammarParser.token_pattern`. The last token is
    of kind `end`.
    """

    kind: str
    text: str
    position: int


class GrammarParser:
    """Reads rules by recursive descent.

    Subclasses define the tokens, items, repeats and directives of a notation. `prefix` goes before
    the name of every rule. All methods raise SchemaError, with line and column, for a mistake.
    """

    token_pattern: re.Pattern[str]
    """Matches a token, each kind in a named group; `blank` is skipped."""

    def __init__(self, source: str, prefix: str = "") -> None:
        self._source = source
        self._prefix = prefix
        self._tokens = list(self._split())
        self._index = 0

    def read_directive(self, token: Token) -> dict[str, Node]:
        """Returns the rules that a directive adds."""
        raise NotImplementedError

    def read_item(self, depth: int) -> Node | None:
        """Reads the next node, without its repeats; None where an alternative ends."""
        raise NotImplementedError

    def parse_limits(self, text: str) -> Limits:
        """Returns the limits in the text of a token of kind `times`."""
        raise NotImplementedError

    def rules(self) -> dict[str, Node]:
        """Reads all rules and returns them by name."""
        rules: dict[str, Node] = {}
        while self.take("end") is None:
            token = self.take("directive")
            if token is not None:
                rules |= self.read_directive(token)
                continue
            token = self.expect("name", "the name of a rule")
            self.take("priority")
            self.expect("define", "::= or :")
            name = token.text.lstrip("!?")
            if self._prefix + name in rules:
                raise self.error(f"rule {name!r} is defined twice", token)
            rules[self._prefix + name] = self.read_options(0)
            if self.peek().kind not in ("name", "directive", "end"):
                raise self.error("unexpected character")
        return rules

    def read_options(self, depth: int) -> Node:
        """Reads alternatives, separated by ``|``."""
        if depth > MAX_DEPTH:
            raise self.error("there are too many nested brackets")
        options = [self._read_series(depth)]
        while self.take_sign("|"):
            options.append(self._read_series(depth))
        if len(options) == 1:
            return options[0]
        return Alternation(options)

    def read_group(self, depth: int, closing: str) -> Node:
        """Reads alternatives and the closing bracket after them."""
        node = self.read_options(depth + 1)
        if not self.take_sign(closing):
            raise self.error(f"expected {closing}")
        return node

    def take_reference(self) -> Node | None:
        """Reads the name of a rule, unless the next rule starts with it."""
        following = self.peek(1)
        if following.kind == "priority":
            following = self.peek(2)
        if following.kind == "define":
            return None
        token = self.take("name")
        if token:
            return DerivationRule(self._prefix + token.text)
        return None

    def peek(self, offset: int = 0) -> Token:
        """Returns a token ahead without reading it."""
        return self._tokens[min(self._index + offset, len(self._tokens) - 1)]

    def take(self, kind: str) -> Token | None:
        """Reads a token of this kind; returns None if another kind is next."""
        token = self.peek()
        if token.kind != kind:
            return None
        self._index += 1
        return token

    def take_sign(self, *signs: str) -> str:
        """Reads one of these signs; returns "" if another token is next."""
        token = self.peek()
        if token.kind != "sign" or token.text not in signs:
            return ""
        self._index += 1
        return token.text

    def expect(self, kind: str, name: str) -> Token:
        """Reads a token of this kind, called `name` in the error if another kind is next."""
        token = self.take(kind)
        if token is None:
            raise self.error(f"expected {name}")
        return token

    def error(self, message: str, token: Token | None = None) -> SchemaError:
        """Returns an error at `token`, or at the next token."""
        return self._error_at(message, (token or self.peek()).position)

    def _read_series(self, depth: int) -> Node:
        items: list[Node] = []
        while (node := self.read_item(depth)) is not None:
            while (limits := self._take_limits()) is not None:
                node = Repetition(node, *limits)
            items.append(node)
        self.take("alias")
        if len(items) == 1:
            return items[0]
        return Series(items)

    def _take_limits(self) -> Limits | None:
        """Reads repeats; returns None if none are next."""
        sign = self.take_sign(*REPEAT_SIGNS)
        if sign:
            return REPEAT_SIGNS[sign]
        token = self.take("times")
        if token is None:
            return None
        min_count, max_count = self.parse_limits(token.text)
        if max_count is not None and max_count < min_count:
            raise self.error("the minimum repeat count exceeds the maximum")
        return min_count, max_count

    def _error_at(self, message: str, position: int) -> SchemaError:
        line = self._source.count("\n", 0, position) + 1
        column = position - self._source.rfind("\n", 0, position)
        return SchemaError(f"line {line}, column {column}: {message}")

    def _split(self) -> Iterator[Token]:
        position = 0
        while position < len(self._source):
            match = self.token_pattern.match(self._source, position)
            if match is None:
                raise self._error_at("unexpected character", position)
            if match.lastgroup != "blank":
                yield Token(str(match.lastgroup), match.group(), position)
            position = match.end()
        yield Token("end", "", position)
