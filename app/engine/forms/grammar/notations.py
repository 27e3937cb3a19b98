"""Parsers of grammars: GBNF of llama.cpp and xgrammar, and Lark's EBNF.

``root ::= "yes" | "no" | [0-9]+`` and ``start: greeting ("," NAME)*``. Lark itself is not used: it expands
terminals within one another, and a kilobyte of nested terminals never ends.
"""

import re
from ast import literal_eval
from collections.abc import Callable, Iterator
from typing import NamedTuple

from app.engine.forms.schema import derivation as nodes
from app.engine.forms.schema.bounds import SchemaError
from app.engine.forms.schema.patterns import PLAIN, Pattern, characters

MOST_CHARACTERS = 50_000
"""Characters of the longest grammar."""
DEEPEST = 60
"""Most levels of nested brackets."""
COMMENT = re.compile(r"(?:#|//).*")
TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}
Times = tuple[int, int | None]


def parse_grammar(source: str, prefix: str = "") -> tuple[dict[str, nodes.Node], str]:
    """Returns the rules and the root of a grammar, in GBNF if a line has ``::=``, else Lark's, as
    in vLLM.

    `prefix` goes before the name of every rule. Raises SchemaError with line and column of a
    mistake.
    """
    if len(source) > MOST_CHARACTERS:
        raise SchemaError(f"a grammar of {len(source)} characters is too long")
    if any("::=" in COMMENT.sub("", line) for line in source.split("\n")):
        return GbnfParser(source, prefix).rules(), prefix + "root"
    return LarkParser(source, prefix).rules(), prefix + "start"


class Token(NamedTuple):
    """`kind` is the name of the matching group of `Parser.tokens`; the last token is of kind `end`."""

    kind: str
    text: str
    at: int


class Parser:
    """Reads rules by recursive descent; the two notations differ in tokens, items, repeats and
    directives.
    """

    tokens: re.Pattern[str]
    """Tokens, each in a named group; `blank` is skipped."""
    directive: Callable[[Token], dict[str, nodes.Node]]
    """Returns the rules that a directive adds."""
    item: Callable[[int], nodes.Node | None]
    """Returns the next node at a depth, without its repeats; None where an alternative ends."""
    numbers: Callable[[str], Times]
    """Returns the least and the most repeats of a token of kind `times`."""

    def __init__(self, source: str, prefix: str) -> None:
        self._source, self._prefix = source, prefix
        self._tokens = list(self._split())
        self._at = 0

    def rules(self) -> dict[str, nodes.Node]:
        found: dict[str, nodes.Node] = {}
        while not self.take("end"):
            if token := self.take("directive"):
                found |= self.directive(token)
                continue
            token = self.expect("name", "the name of a rule")
            self.take("priority")
            self.expect("define", "::= or :")
            name = token.text.lstrip("!?")
            if self._prefix + name in found:
                raise self.wrong(f"rule {name!r} comes a second time", token.at)
            found[self._prefix + name] = self.options(0)
            if self.look().kind not in ("name", "directive", "end"):
                raise self.wrong("an unexpected sign")
        return found

    def options(self, depth: int) -> nodes.Node:
        if depth > DEEPEST:
            raise self.wrong("too many brackets in one another")
        options: list[nodes.Node] = []
        while not options or self.skip("|"):
            items: list[nodes.Node] = []
            while (node := self.item(depth)) is not None:
                while times := self.times():
                    node = nodes.Repetition(node, *times)
                items.append(node)
            options.append(items[0] if len(items) == 1 else nodes.Series(items))
            self.take("alias")
        return options[0] if len(options) == 1 else nodes.Alternation(options)

    def bracketed(self, depth: int, closing: str) -> nodes.Node:
        node = self.options(depth + 1)
        if not self.skip(closing):
            raise self.wrong(f"expected {closing}")
        return node

    def look(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def begins_rule(self) -> bool:
        return self.look(2 if self.look(1).kind == "priority" else 1).kind == "define"

    def take(self, kind: str) -> Token | None:
        """Steps over a token of this kind; returns None, without a step, when another kind is next."""
        token = self.look()
        if token.kind != kind:
            return None
        self._at += 1
        return token

    def skip(self, *signs: str) -> str:
        """Steps over one of these signs; returns "", without a step, when another token is next."""
        found = self.look().kind == "sign" and self.look().text in signs
        self._at += found
        return self._tokens[self._at - 1].text if found else ""

    def expect(self, kind: str, called: str) -> Token:
        if (token := self.take(kind)) is None:
            raise self.wrong(f"expected {called}")
        return token

    def times(self) -> Times | None:
        """Steps over repeats and returns them; None when none are next."""
        if sign := self.skip(*TIMES):
            return TIMES[sign]
        if (token := self.take("times")) is None:
            return None
        least, most = self.numbers(token.text)
        if most is not None and most < least:
            raise self.wrong("more repeats at least than at most")
        return least, most

    def wrong(self, what: str, at: int | None = None) -> SchemaError:
        at = self.look().at if at is None else at
        line, column = self._source.count("\n", 0, at) + 1, at - self._source.rfind("\n", 0, at)
        return SchemaError(f"line {line}, column {column}: {what}")

    def _split(self) -> Iterator[Token]:
        at, source = 0, self._source
        while at < len(source):
            found = self.tokens.match(source, at)
            if found is None:
                raise self.wrong("an unexpected character", at)
            if found.lastgroup != "blank":
                yield Token(str(found.lastgroup), found.group(), at)
            at = found.end()
        yield Token("end", "", at)


ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
NAMED = {
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
MOST_OF_RANGE = 255
"""Most characters taken from a range."""


class GbnfParser(Parser):
    tokens = re.compile(
        r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)|(?P<define>::=)|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)
        |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\\n]|\\.)*\])
        |(?P<times>\{[ ]*\d{1,6}[ ]*(?:,[ ]*(?:\d{1,6}[ ]*)?)?\})|(?P<sign>[*+?|().])""",
        re.VERBOSE,
    )

    def item(self, depth: int) -> nodes.Node | None:
        if not self.begins_rule() and (token := self.take("name")):
            return nodes.DerivationRule(self._prefix + token.text)
        if token := self.take("text"):
            return nodes.Text(self._unescaped(token, str))
        if token := self.take("set"):
            return self._set(token)
        if self.skip("."):
            return nodes.Characters(PLAIN + " ")
        return self.bracketed(depth, ")") if self.skip("(") else None

    def numbers(self, text: str) -> Times:
        least, comma, most = text[1:-1].replace(" ", "").partition(",")
        return int(least), int(most) if most else None if comma else int(least)

    def _unescaped(self, token: Token, write: Callable[[str], str]) -> str:
        """Returns the text between the delimiters; `write` writes the characters that are escaped
        there.
        """

        def character(found: re.Match[str]) -> str:
            code, named = found[1] or found[2] or found[3], found[4]
            if code:
                point = int(code, 16)
                if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                    raise self.wrong("an escape that is no character", token.at)
                return write(chr(point))
            if named.isalnum() and named not in NAMED:
                raise self.wrong(f"an unknown escape \\{named}", token.at)
            return write(NAMED.get(named, named))

        return ESCAPE.sub(character, token.text[1:-1])

    def _set(self, token: Token) -> nodes.Node:
        try:
            choices = characters(f"[{self._unescaped(token, re.escape)}]")
        except SchemaError as error:
            raise self.wrong(f"a wrong set of characters: {error}", token.at) from None
        if not choices:
            raise self.wrong("a set without characters", token.at)
        return nodes.Characters(choices)


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
        |(?P<times>~\s*\d{1,6}(?:\s*\.\.\s*\d{1,6})?)|(?P<priority>\.-?\d+)|(?P<define>:)
        |(?P<sign>\.\.|[*+?|()\[\]])""",
        re.VERBOSE,
    )

    _patterns = 0

    def item(self, depth: int) -> nodes.Node | None:
        if not self.begins_rule() and (token := self.take("name")):
            return nodes.DerivationRule(self._prefix + token.text)
        if token := self.take("text"):
            return self._text(token)
        if token := self.take("pattern"):
            return self._pattern(token)
        if self.skip("["):
            return nodes.Repetition(self.bracketed(depth, "]"), 0, 1)
        return self.bracketed(depth, ")") if self.skip("(") else None

    def numbers(self, text: str) -> Times:
        least, _, most = text[1:].partition("..")
        return int(least), int(most or least)

    def _text(self, token: Token) -> nodes.Node:
        """Returns a text, in lower case if case-insensitive, or a range of characters."""
        text = self._read(token)
        if not self.skip(".."):
            return nodes.Text(text.lower() if token.text.endswith("i") else text)
        last = self._read(self.expect("text", "the last character"))
        if len(text) != 1 or len(last) != 1 or last < text:
            raise self.wrong(f"{text!r}..{last!r} is no range of characters", token.at)
        points = range(ord(text), min(ord(last), ord(text) + MOST_OF_RANGE) + 1)
        return nodes.Characters(
            "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
        )

    def _read(self, token: Token) -> str:
        try:
            text: str = literal_eval(token.text.removesuffix("i"))
            text.encode()
        except (SyntaxError, ValueError):
            raise self.wrong("a text with a wrong escape", token.at) from None
        return text

    def directive(self, token: Token) -> dict[str, nodes.Node]:
        """Returns the terminals that a line imports; none for `%ignore`, as ignored text is never
        written.
        """
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
        return {
            self._prefix + name: nodes.as_node(Pattern(COMMON[source]))
            for name, source in names.items()
        }

    def _pattern(self, token: Token) -> nodes.Node:
        self._patterns += 1
        if self._patterns > MOST_PATTERNS:
            raise self.wrong("too many regular expressions", token.at)
        source, _, flags = token.text[1:].rpartition("/")
        inline = "".join(flag for flag in "imsx" if flag in flags)
        return nodes.as_node(Pattern(f"(?{inline}){source}" if inline else source))
