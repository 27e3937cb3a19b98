"""Parser of Lark's EBNF.

Lark itself is not used: it expands terminals within one another, and does not finish a kilobyte of
nested terminals.
"""

import re
from ast import literal_eval

from app.extensions.forms.grammar.parser import GrammarParser, Limits, Token
from app.extensions.forms.schema.derivation import Characters, Node, Repetition, Text, as_node
from app.extensions.forms.schema.pattern_writer import range_characters
from app.extensions.forms.schema.patterns import Pattern
from app.extensions.forms.schema.request_patterns import compile_regex

MAX_RANGE = 255
"""Maximum characters taken from a range, beside the first."""
MAX_PATTERNS = 300
"""Maximum regular expressions in one grammar."""
COMMON_TERMINALS = {
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
ESCAPE = re.compile(r"\\(.)")
ESCAPED_CHARACTERS = frozenset('"\\bfnrtu')
"""Characters after a backslash in texts that vLLM's backends take."""
PATTERN_FLAGS = "imsx"
"""Flags that are kept; `l` and `u` have no effect here."""


class LarkParser(GrammarParser):
    """Reads Lark's EBNF, such as ``start: greeting ("," NAME)*``.

    Templates are not supported, nor imports other than from `common`.
    """

    token_pattern = re.compile(
        r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)|(?P<directive>%[^\n]*)
        |(?P<name>[!?]?[A-Za-z_](?:\w|-(?!>))*)|(?P<text>"(?:[^"\\\n]|\\.)*"i?)
        |(?P<pattern>/(?![/*])(?:[^/\\\n]|\\.)+/[imslux]*)|(?P<alias>->\s*\w+)
        |(?P<times>~\s*\d{1,6}(?:\s*\.\.\s*\d{1,6})?
        |\{\s*\d{1,6}\s*(?:,\s*(?:\d{1,6}\s*)?)?\})|(?P<priority>\.-?\d+)|(?P<define>:)
        |(?P<sign>\.\.|[*+?|()\[\]])""",
        re.VERBOSE,
    )

    def __init__(self, source: str, prefix: str = "") -> None:
        super().__init__(source, prefix)
        self._pattern_count = 0

    def read_directive(self, token: Token) -> dict[str, Node]:
        """Returns the terminals that a line imports.

        ``%ignore`` adds none, as ignored text is never written.
        """
        line = re.split(r"//|#", token.text)[0].strip()
        if line.startswith("%ignore"):
            return {}
        match = IMPORT.fullmatch(line)
        if match is None:
            raise self.error("terminals can be imported only from Lark's library 'common'", token)
        terminal, alias, terminal_list = match.groups()
        if terminal:
            imported = {alias or terminal: terminal}
        else:
            imported = {name: name for name in re.findall(r"\w+", terminal_list)}
        unknown = set(imported.values()) - COMMON_TERMINALS.keys()
        if unknown:
            raise self.error(f"Lark's library 'common' does not contain {min(unknown)}", token)
        rules: dict[str, Node] = {}
        for name, terminal in imported.items():
            rules[self._prefix + name] = as_node(Pattern(COMMON_TERMINALS[terminal]))
        return rules

    def read_item(self, depth: int) -> Node | None:
        """Reads a name, text, pattern or group; None where an alternative ends."""
        reference = self.take_reference()
        if reference is not None:
            return reference
        if self.peek().kind == "name":  # the next rule
            return None
        token = self.take("text")
        if token is not None:
            return self._read_text(token)
        token = self.take("pattern")
        if token is not None:
            return self._read_pattern(token)
        if self.take_sign("["):
            return Repetition(self.read_group(depth, "]"), 0, 1)
        if self.take_sign("("):
            return self.read_group(depth, ")")
        return None

    def parse_limits(self, text: str) -> Limits:
        """Returns the limits after a tilde or in braces, such as ``~2..3`` or ``{2,3}``."""
        if text.startswith("{"):
            minimum, comma, maximum = text[1:-1].partition(",")
            if comma and not maximum.strip():
                return int(minimum), None
            return int(minimum), int(maximum or minimum)
        minimum, _, maximum = text[1:].partition("..")
        return int(minimum), int(maximum or minimum)

    def _read_text(self, token: Token) -> Node:
        """Returns a text, in lower case if case-insensitive, or a range of characters."""
        text = self._unescape(token)
        if not self.take_sign(".."):
            if token.text.endswith("i"):
                text = text.lower()
            return Text(text)
        last = self._unescape(self.expect("text", "the last character"))
        if len(text) != 1 or len(last) != 1 or last < text:
            raise self.error(f"{text!r}..{last!r} is not a character range", token)
        first_point = ord(text)
        last_point = min(ord(last), first_point + MAX_RANGE)
        return Characters(range_characters(first_point, last_point))

    def _unescape(self, token: Token) -> str:
        for escape in ESCAPE.finditer(token.text):
            if escape[1] not in ESCAPED_CHARACTERS:
                raise self.error("a string contains an invalid escape sequence", token)
        try:
            text: str = literal_eval(token.text.removesuffix("i"))
            text.encode()
        except (SyntaxError, ValueError):
            raise self.error("a string contains an invalid escape sequence", token) from None
        return text

    def _read_pattern(self, token: Token) -> Node:
        self._pattern_count += 1
        if self._pattern_count > MAX_PATTERNS:
            raise self.error("there are too many regular expressions", token)
        source, _, flags = token.text[1:].rpartition("/")
        inline = "".join(flag for flag in PATTERN_FLAGS if flag in flags)
        if inline:
            source = f"(?{inline}){source}"
        return as_node(compile_regex(source))
