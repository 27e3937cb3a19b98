"""From what a client wrote to a grammar that texts can be derived from."""

from __future__ import annotations

import re

from app.grammar import gbnf, lark_ebnf
from app.grammar.gbnf import GbnfParser
from app.grammar.lark_ebnf import LarkParser
from app.grammar.nodes import Grammar, Node
from app.grammar.structural_tags import ROOT as TAG_ROOT
from app.grammar.structural_tags import tag_rules
from app.schema import Schemas
from app.schema.errors import SchemaError
from app.schema.schemas import off_hub_if_long

MOST_CHARACTERS = 50_000
"""Characters of the longest grammar."""
COMMENT = re.compile(r"(?:#|//).*")


def compile_grammar(source: str) -> Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: Grammar(*_parsed(source)))


def compile_structural_tag(source: str, schemas: Schemas) -> Grammar:
    """Returns the grammar of a structural tag, which is JSON. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: _tag_grammar(source, schemas))


def _tag_grammar(source: str, schemas: Schemas) -> Grammar:
    try:
        return Grammar(tag_rules(source, schemas, _parsed), TAG_ROOT)
    except RecursionError:
        raise SchemaError("it is too deep") from None


def _parsed(source: str) -> tuple[dict[str, Node], str]:
    """Returns the rules of a grammar, and its root. It is Lark's unless a line has ``::=``, as in vLLM."""
    if len(source) > MOST_CHARACTERS:
        raise SchemaError(f"a grammar of {len(source)} characters is too long")
    if any("::=" in COMMENT.sub("", line) for line in source.split("\n")):
        return GbnfParser(source).rules(), gbnf.ROOT
    return LarkParser(source).rules(), lark_ebnf.ROOT
