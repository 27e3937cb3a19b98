"""Parser of GBNF, the grammar notation of llama.cpp and xgrammar."""

import re
from collections.abc import Callable

from app.extensions.forms.grammar.parser import GrammarParser, Limits, Token
from app.extensions.forms.schema.bounds import SchemaError
from app.extensions.forms.schema.derivation import Characters, Node, Text
from app.extensions.forms.schema.pattern_writer import PLAIN
from app.extensions.forms.schema.patterns import characters

ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
NAMED_ESCAPES = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\x1b",
}


class GbnfParser(GrammarParser):
    """Reads GBNF, such as ``root ::= "yes" | "no" | [0-9]+``."""

    token_pattern = re.compile(
        r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)|(?P<define>::=)|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)
        |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\\n]|\\.)*\])
        |(?P<times>\{[ ]*\d{1,6}[ ]*(?:,[ ]*(?:\d{1,6}[ ]*)?)?\})|(?P<sign>[*+?|().])""",
        re.VERBOSE,
    )

    def read_item(self, depth: int) -> Node | None:
        """Reads a name, text, set, dot or group; None where an alternative ends."""
        reference = self.take_reference()
        if reference is not None:
            return reference
        if self.peek().kind == "name":  # the next rule
            return None
        token = self.take("text")
        if token is not None:
            return Text(self._unescape(token, str))
        token = self.take("set")
        if token is not None:
            return self._read_set(token)
        if self.take_sign("."):
            return Characters(PLAIN + " ")
        if self.take_sign("("):
            return self.read_group(depth, ")")
        return None

    def parse_limits(self, text: str) -> Limits:
        """Returns the limits in braces, such as ``{2,}``."""
        minimum, comma, maximum = text[1:-1].replace(" ", "").partition(",")
        min_count = int(minimum)
        if maximum:
            return min_count, int(maximum)
        if comma:
            return min_count, None
        return min_count, min_count

    def _unescape(self, token: Token, quote: Callable[[str], str]) -> str:
        """Returns the text between the delimiters; `quote` is applied to escaped characters."""

        def replace(match: re.Match[str]) -> str:
            return quote(self._character(match, token))

        return ESCAPE.sub(replace, token.text[1:-1])

    def _character(self, escape: re.Match[str], token: Token) -> str:
        code = escape[1] or escape[2] or escape[3]
        if code:
            point = int(code, 16)
            if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                raise self.error("an escape sequence does not represent a character", token)
            return chr(point)
        name = escape[4]
        if name.isalnum() and name not in NAMED_ESCAPES:
            raise self.error(f"unknown escape sequence \\{name}", token)
        return NAMED_ESCAPES.get(name, name)

    def _read_set(self, token: Token) -> Node:
        try:
            choices = characters(f"[{self._unescape(token, re.escape)}]")
        except SchemaError as error:
            raise self.error(f"invalid character class: {error}", token) from None
        if not choices:
            raise self.error("a character class is empty", token)
        return Characters(choices)
