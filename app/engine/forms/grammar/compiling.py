"""Compiles the grammars and structural tags of requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from app.engine.forms.grammar import structural_tags as formats
from app.engine.forms.grammar.notations import parse_grammar
from app.engine.forms.schema import Ranges, Schemas, Size
from app.engine.forms.schema.bounds import SchemaError, WorkBudget
from app.engine.forms.schema.derivation import (
    FREE_TEXT,
    LONGEST,
    Alternation,
    DerivationRule,
    Grammar,
    Node,
    Repetition,
    Series,
    Text,
    WrittenText,
    as_node,
)
from app.engine.forms.schema.patterns import Pattern
from app.engine.forms.schema.schemas import off_hub_if_long

TAG_ROOT = ""
"""Root rule of a structural tag; rules of inner grammars never have this name."""
SHORTEST_JSON = 2
ROOMY = 60
"""Characters from which JSON need not be brief."""


def compile_grammar(source: str) -> Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: Grammar(*parse_grammar(source)))


def compile_structural_tag(source: str, schemas: Schemas) -> Grammar:
    """Returns the grammar of a structural tag in JSON. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: _tag_grammar(source, schemas))


def _tag_grammar(source: str, schemas: Schemas) -> Grammar:
    rules: dict[str, Node] = {}
    try:
        rules[TAG_ROOT] = _node(formats.read_structural_tag(source), rules, schemas)
        return Grammar(rules, TAG_ROOT)
    except RecursionError:
        raise SchemaError("it is too deep") from None
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _node(found: formats.Format, rules: dict[str, Node], schemas: Schemas) -> Node:
    """Returns the node of a format, and adds the rules of inner grammars to `rules`."""

    def nodes(inner: Sequence[formats.Format]) -> list[Node]:
        return [_node(each, rules, schemas) for each in inner]

    match found:
        case formats.ConstString(value=text) | formats.Token(token=text):
            return Text(text)
        case formats.JsonContent(json_schema=schema):
            compiled = schemas.compile(schema)

            def write(rng: Random, budget: WorkBudget, ranges: Ranges, length: int) -> str:
                size = Size.BRIEF if length < ROOMY else Size.USUAL
                return json.dumps(compiled.sample(rng, ranges, size), ensure_ascii=False)

            return WrittenText(SHORTEST_JSON, LONGEST, write)
        case formats.AnyText():
            return FREE_TEXT
        case formats.RegexContent(pattern=pattern):
            return as_node(Pattern(pattern))
        case formats.GrammarContent(grammar=source):
            more, root = parse_grammar(source, f"{len(rules)}:")
            rules |= more
            return DerivationRule(root)
        case formats.SequenceOf(elements=elements):
            return Series(nodes(elements))
        case formats.AnyOf(elements=elements):
            return Alternation(nodes(elements))
        case formats.Tag():
            closing = Alternation([Text(end) for end in found.end_texts])
            return Series([Text(found.begin_text), *nodes([found.content]), closing])
        case formats.TriggeredTags() | formats.SeparatedTags():
            # One tag at least, as a client that asks for tags expects some.
            tag = Alternation(nodes(found.tags))
            if isinstance(found, formats.SeparatedTags):
                more_tags = Repetition(Series([Text(found.separator), tag]))
                return tag if found.stop_after_first else Series([tag, more_tags])
            before: list[Node] = [] if found.at_least_one else [FREE_TEXT]
            more_text: list[Node] = [Repetition(Series([FREE_TEXT, tag])), FREE_TEXT]
            return Series([*before, tag, *([] if found.stop_after_first else more_text)])
    return Repetition(_node(found.content, rules, schemas), *found.limits)
