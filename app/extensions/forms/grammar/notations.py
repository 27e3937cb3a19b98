"""Parses grammars in GBNF or in Lark's EBNF."""

import re

from app.extensions.forms.grammar.gbnf import GbnfParser
from app.extensions.forms.grammar.lark import LarkParser
from app.extensions.forms.schema.bounds import SchemaError
from app.extensions.forms.schema.derivation import Node

MAX_LENGTH = 50_000
"""Maximum length of a grammar."""
COMMENT = re.compile(r"(?:#|//).*")


def parse_grammar(source: str, prefix: str = "") -> tuple[dict[str, Node], str]:
    """Returns the rules of a grammar and the name of its root.

    `prefix` goes before the name of every rule.

    Raises:
        SchemaError: The grammar has a mistake, with line and column, or is too long.
    """
    if len(source) > MAX_LENGTH:
        raise SchemaError(f"the grammar is too long: it has {len(source)} characters")
    if is_gbnf(source):
        return GbnfParser(source, prefix).rules(), prefix + "root"
    return LarkParser(source, prefix).rules(), prefix + "start"


def is_gbnf(source: str) -> bool:
    """Returns whether a line has ``::=``; otherwise the grammar is in Lark's EBNF, as in vLLM."""
    return any("::=" in COMMENT.sub("", line) for line in source.split("\n"))
