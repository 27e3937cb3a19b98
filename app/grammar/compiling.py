"""From what a client wrote to a grammar that texts can be derived from."""

from __future__ import annotations

import re

from app.clock.pause import Slices
from app.grammar import gbnf, lark_ebnf
from app.grammar.gbnf import GbnfParser
from app.grammar.lark_ebnf import LarkParser
from app.grammar.nodes import Grammar, Node
from app.grammar.structural_tags import ROOT as TAG_ROOT
from app.grammar.structural_tags import tag_rules
from app.schema import Schemas
from app.schema.errors import SchemaError

MOST_CHARACTERS = 50_000
"""Characters of the longest grammar."""
COMMENT = re.compile(r"(?:#|//).*")


def compile_grammar(source: str, slices: Slices) -> Grammar:
    """The grammar in `source`, GBNF or Lark's EBNF. SchemaError says why it is none."""
    rules, root = _read(source, slices)
    return Grammar(rules, root, slices)


def compile_structural_tag(source: str, schemas: Schemas, slices: Slices) -> Grammar:
    """The grammar of a structural tag, which is JSON. SchemaError says why it is none."""
    try:
        rules = tag_rules(source, schemas, lambda inner: _read(inner, slices))
    except RecursionError:
        raise SchemaError("it is too deep") from None
    return Grammar(rules, TAG_ROOT, slices)


def _read(source: str, slices: Slices) -> tuple[dict[str, Node], str]:
    """The rules of a grammar, and its root. It is Lark's unless a line has ``::=``, as vLLM sees it."""
    if len(source) > MOST_CHARACTERS:
        raise SchemaError(f"a grammar of {len(source)} characters is too long")
    if any("::=" in COMMENT.sub("", line) for line in source.split("\n")):
        return GbnfParser(source, slices).rules(), gbnf.ROOT
    return LarkParser(source, slices).rules(), lark_ebnf.ROOT
