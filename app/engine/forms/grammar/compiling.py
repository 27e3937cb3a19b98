"""Compiles the grammars and structural tags of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random

from app.engine.forms.grammar import notations
from app.engine.forms.grammar import structural_tags as formats
from app.engine.forms.schema import Ranges, Schemas, Size
from app.engine.forms.schema.compiled import CompiledSchema
from app.engine.forms.schema.derivation import (
    FREE_TEXT,
    LONGEST,
    Alternation,
    Grammar,
    Node,
    Repetition,
    Rule,
    Series,
    Text,
    Written,
    as_node,
)
from app.engine.forms.schema.errors import SchemaError, WorkBudget
from app.engine.forms.schema.patterns import Pattern
from app.engine.forms.schema.schemas import off_hub_if_long

MOST_CHARACTERS = 50_000
"""Characters of the longest grammar."""
TAG_ROOT = ""
"""Root rule of a structural tag; rules of inner grammars never have this name."""
SHORTEST_JSON = 2
ROOMY = 60
"""Characters from which JSON need not be brief."""
COMMENT = re.compile(r"(?:#|//).*")


def compile_grammar(source: str) -> Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: Grammar(*_parsed(source)))


def compile_structural_tag(source: str, schemas: Schemas) -> Grammar:
    """Returns the grammar of a structural tag in JSON. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: _tag_grammar(source, schemas))


def _tag_grammar(source: str, schemas: Schemas) -> Grammar:
    try:
        found = formats.read_structural_tag(source)
    except ValueError as error:
        raise SchemaError(str(error)) from None
    try:
        return Grammar(_RuleBuilder(schemas).rules(found), TAG_ROOT)
    except RecursionError:
        raise SchemaError("it is too deep") from None


def _parsed(source: str) -> tuple[dict[str, Node], str]:
    """Returns the rules and the root of a grammar, in GBNF if a line has ``::=``, else Lark's, as in vLLM."""
    if len(source) > MOST_CHARACTERS:
        raise SchemaError(f"a grammar of {len(source)} characters is too long")
    if any("::=" in COMMENT.sub("", line) for line in source.split("\n")):
        return notations.GbnfParser(source).rules(), notations.GBNF_ROOT
    return notations.LarkParser(source).rules(), notations.LARK_ROOT


def _json_node(schema: CompiledSchema) -> Node:
    def write(rng: Random, budget: WorkBudget, ranges: Ranges, length: int) -> str:
        size = Size.BRIEF if length < ROOMY else Size.USUAL
        return json.dumps(schema.sample(rng, ranges, size), ensure_ascii=False)

    return Written(SHORTEST_JSON, LONGEST, write)


class _RuleBuilder:
    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._rules: dict[str, Node] = {}

    def rules(self, found: formats.Format) -> dict[str, Node]:
        self._rules[TAG_ROOT] = self._node(found)
        return self._rules

    def _node(self, found: formats.Format) -> Node:
        match found:
            case formats.ConstString(value=text) | formats.Token(token=text):
                return Text(text)
            case formats.JsonContent(json_schema=schema):
                return _json_node(self._schemas.compile(schema))
            case formats.AnyText():
                return FREE_TEXT
            case formats.RegexContent(pattern=pattern):
                return as_node(Pattern(pattern))
            case formats.GrammarContent(grammar=source):
                return self._grammar(source)
            case formats.SequenceOf(elements=elements):
                return Series([self._node(each) for each in elements])
            case formats.AnyOf(elements=elements):
                return _alternation([self._node(each) for each in elements])
            case formats.Tag():
                closing = _alternation([Text(end) for end in found.end_texts])
                return Series([Text(found.begin_text), self._node(found.content), closing])
            case formats.TriggeredTags() | formats.SeparatedTags():
                return self._tags(found)
        return Repetition(self._node(found.content), *found.limits)

    def _grammar(self, source: str) -> Node:
        """Adds the rules of an inner grammar, names prefixed with a number, and returns its root."""
        rules, root = _parsed(source)
        prefix = f"{len(self._rules)}:"
        renamed: dict[int, Node] = {}
        self._rules |= {prefix + name: _renamed(node, prefix, renamed) for name, node in rules.items()}
        return Rule(prefix + root)

    def _tags(self, found: formats.TriggeredTags | formats.SeparatedTags) -> Node:
        """Returns text with one tag at least, as a client that asks for tags expects some."""
        tag = _alternation([self._node(each) for each in found.tags])
        if isinstance(found, formats.SeparatedTags):
            more = Repetition(Series([Text(found.separator), tag]))
            return tag if found.stop_after_first else Series([tag, more])
        before: list[Node] = [] if found.at_least_one else [FREE_TEXT]
        after: list[Node] = (
            [] if found.stop_after_first else [Repetition(Series([FREE_TEXT, tag])), FREE_TEXT]
        )
        return Series([*before, tag, *after])


def _renamed(node: Node, prefix: str, made: dict[int, Node]) -> Node:
    """Returns `node` with `prefix` before the names of rules; shared nodes stay shared."""
    if id(node) in made:
        return made[id(node)]
    new = node
    match node:
        case Rule(name):
            new = Rule(prefix + name)
        case Series(items):
            new = Series([_renamed(each, prefix, made) for each in items])
        case Alternation(options):
            new = Alternation([_renamed(each, prefix, made) for each in options])
        case Repetition(item, least, most):
            new = Repetition(_renamed(item, prefix, made), least, most)
    made[id(node)] = new
    return new


def _alternation(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Alternation(nodes)
