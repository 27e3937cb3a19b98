"""Compiles the grammars and structural tags of requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from app.engine.forms.grammar import structural_tags as formats
from app.engine.forms.grammar.notations import parse_grammar
from app.engine.forms.schema import Ranges, Schemas, Size
from app.engine.forms.schema import derivation as nodes
from app.engine.forms.schema.bounds import SchemaError, WorkBudget
from app.engine.forms.schema.patterns import Pattern
from app.engine.forms.schema.schemas import off_hub_if_long

TAG_ROOT = ""
"""Root rule of a structural tag; rules of inner grammars never have this name."""
SHORTEST_JSON = 2
ROOMY = 60
"""Characters from which JSON need not be brief."""


def compile_grammar(source: str) -> nodes.Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: nodes.Grammar(*parse_grammar(source)))


def compile_structural_tag(source: str, schemas: Schemas) -> nodes.Grammar:
    """Returns the grammar of a structural tag in JSON. Raises SchemaError for anything else."""
    return off_hub_if_long(len(source), lambda: _tag_grammar(source, schemas))


def _tag_grammar(source: str, schemas: Schemas) -> nodes.Grammar:
    rules: dict[str, nodes.Node] = {}
    try:
        rules[TAG_ROOT] = _node(formats.read_structural_tag(source), rules, schemas)
        return nodes.Grammar(rules, TAG_ROOT)
    except RecursionError:
        raise SchemaError("it is too deep") from None
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _node(found: formats.Format, rules: dict[str, nodes.Node], schemas: Schemas) -> nodes.Node:
    """Returns the node of a format, and adds the rules of inner grammars to `rules`."""

    def each(inner: Sequence[formats.Format]) -> list[nodes.Node]:
        return [_node(it, rules, schemas) for it in inner]

    match found:
        case formats.ConstString(value=text) | formats.Token(token=text):
            return nodes.Text(text)
        case formats.JsonContent(json_schema=schema):
            compiled = schemas.compile(schema)

            def write(rng: Random, budget: WorkBudget, ranges: Ranges, length: int) -> str:
                size = Size.BRIEF if length < ROOMY else Size.USUAL
                return json.dumps(compiled.sample(rng, ranges, size), ensure_ascii=False)

            return nodes.WrittenText(SHORTEST_JSON, nodes.LONGEST, write)
        case formats.AnyText():
            return nodes.FREE_TEXT
        case formats.RegexContent(pattern=pattern):
            return nodes.as_node(Pattern(pattern))
        case formats.GrammarContent(grammar=source):
            inner, root = parse_grammar(source, f"{len(rules)}:")
            rules |= inner
            return nodes.DerivationRule(root)
        case formats.SequenceOf(elements=elements):
            return nodes.Series(each(elements))
        case formats.AnyOf(elements=elements):
            return nodes.Alternation(each(elements))
        case formats.Tag():
            closing = nodes.Alternation([nodes.Text(end) for end in found.end_texts])
            return nodes.Series([nodes.Text(found.begin_text), *each([found.content]), closing])
        case formats.TriggeredTags() | formats.SeparatedTags():
            # One tag at least, as a client that asks for tags expects some.
            tag = nodes.Alternation(each(found.tags))
            if isinstance(found, formats.SeparatedTags):
                more_tags = nodes.Repetition(nodes.Series([nodes.Text(found.separator), tag]))
                return tag if found.stop_after_first else nodes.Series([tag, more_tags])
            before: list[nodes.Node] = [] if found.at_least_one else [nodes.FREE_TEXT]
            more: list[nodes.Node] = [nodes.Repetition(nodes.Series([nodes.FREE_TEXT, tag])), nodes.FREE_TEXT]
            return nodes.Series([*before, tag, *([] if found.stop_after_first else more)])
    return nodes.Repetition(_node(found.content, rules, schemas), *found.limits)
