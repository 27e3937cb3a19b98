"""Grammars in Lark's EBNF: ``start: greeting ("," NAME)*``.

Lark itself is not asked: it writes terminals out in one another, and a kilobyte of them keeps it busy
for good.
"""

from __future__ import annotations

import re
from ast import literal_eval

from app.grammar.nodes import Match, Node, OneOf, Repetition, Rule, Text
from app.grammar.parsing import Parser, Times, Token
from app.schema.patterns import Pattern

ROOT = "start"
MOST_PATTERNS = 300
"""Regular expressions in one grammar."""
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
"""The terminals of Lark's library `common`; the plainest of their texts."""
IMPORT = re.compile(r"%import\s+common\s*(?:\.\s*(\w+)\s*(?:->\s*(\w+))?|\(([\w\s,]*)\))\s*")


class LarkParser(Parser):
    """Reads Lark's EBNF, but for templates, files and what is defined elsewhere."""

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
        """A text, in lower case where its case does not matter; or a range of characters."""
        text = self._read(token)
        if not self.skip(".."):
            return Text(text.lower() if token.text.endswith("i") else text)
        last = self._read(self.expect("text", "the last character"))
        if len(text) != 1 or len(last) != 1 or last < text:
            raise self.wrong(f"{text!r}..{last!r} is no range of characters", token.at)
        return OneOf([(ord(text), ord(last))])

    def _read(self, token: Token) -> str:
        try:
            text: str = literal_eval(token.text.removesuffix("i"))
            text.encode()
        except (SyntaxError, ValueError):
            raise self.wrong("a text with a wrong escape", token.at) from None
        return text

    def _directive(self, token: Token) -> dict[str, Node]:
        """The terminals that a line imports. What is ignored between tokens is never written."""
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
        return {name: Match(Pattern(COMMON[source])) for name, source in names.items()}

    def _pattern(self, token: Token) -> Node:
        """A regular expression with its flags."""
        self._patterns += 1
        if self._patterns > MOST_PATTERNS:
            raise self.wrong("too many regular expressions", token.at)
        source, _, flags = token.text[1:].rpartition("/")
        inline = "".join(flag for flag in "imsx" if flag in flags)
        return Match(Pattern(f"(?{inline}){source}" if inline else source))
