"""Compiles grammars and structural tags of requests into grammars that derive texts."""

import json
from collections.abc import Sequence
from functools import partial
from random import Random

from app.extensions.forms.grammar import structural_tags as formats
from app.extensions.forms.grammar.notations import parse_grammar
from app.extensions.forms.schema import Schemas
from app.extensions.forms.schema import derivation as nodes
from app.extensions.forms.schema.bounds import SchemaError, Size, WorkBudget
from app.extensions.forms.schema.request_patterns import compile_regex
from config.settings import ToolSettings

TAG_ROOT = ""
"""Root rule of a structural tag; rules of inner grammars never have this name."""
MIN_JSON_LENGTH = 2
USUAL_JSON_LENGTH = 60
"""Length from which JSON need not be brief."""


def compile_grammar(source: str, schemas: Schemas) -> nodes.Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF.

    Raises:
        SchemaError: `source` is not a grammar.
    """
    return schemas.call(len(source), partial(_parse, source))


def compile_structural_tag(source: str, schemas: Schemas) -> nodes.Grammar:
    """Returns the grammar of the structural tag in the JSON `source`.

    Raises:
        SchemaError: `source` is not a structural tag.
    """
    return schemas.call(len(source), partial(_compile_tag, source, schemas))


def _parse(source: str) -> nodes.Grammar:
    rules, root = parse_grammar(source)
    return nodes.Grammar(rules, root)


def _compile_tag(source: str, schemas: Schemas) -> nodes.Grammar:
    try:
        return _TagCompiler(schemas).compile(formats.read_structural_tag(source))
    except RecursionError:
        raise SchemaError("the structural tag is nested too deeply") from None
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error)) from None


class _TagCompiler:
    """Compiles the format of a structural tag; its rules include those of inner grammars."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._rules: dict[str, nodes.Node] = {}

    def compile(self, tag_format: formats.Format) -> nodes.Grammar:
        self._rules[TAG_ROOT] = self._node(tag_format)
        return nodes.Grammar(self._rules, TAG_ROOT)

    def _node(self, tag_format: formats.Format) -> nodes.Node:
        match tag_format:
            case formats.ConstString(value=text) | formats.Token(token=text):
                return nodes.Text(text)
            case formats.SequenceOf(elements=elements):
                return nodes.Series(self._nodes(elements))
            case formats.AnyOf(elements=elements):
                return nodes.Alternation(self._nodes(elements))
            case formats.Tag():
                return self._tag(tag_format)
            case formats.TriggeredTags():
                return self._triggered_tags(tag_format)
            case formats.SeparatedTags():
                return self._separated_tags(tag_format)
            case formats.Star():
                return nodes.Repetition(self._node(tag_format.content), *tag_format.limits)
        return self._content(tag_format)

    def _nodes(self, elements: Sequence[formats.Format]) -> list[nodes.Node]:
        return [self._node(element) for element in elements]

    def _content(self, tag_format: formats.Content) -> nodes.Node:
        match tag_format:
            case formats.JsonContent(json_schema=schema):
                return self._json(schema)
            case formats.RegexContent(pattern=pattern):
                return nodes.as_node(compile_regex(pattern))
            case formats.GrammarContent(grammar=source):
                rules, root = parse_grammar(source, prefix=f"{len(self._rules)}:")
                self._rules |= rules
                return nodes.DerivationRule(root)
        return nodes.FreeText()

    def _json(self, schema: bool | dict[str, object]) -> nodes.Node:
        compiled = self._schemas.compile(schema)

        def write_json(rng: Random, budget: WorkBudget, usual: ToolSettings, length: int) -> str:
            size = Size.USUAL
            if length < USUAL_JSON_LENGTH:
                size = Size.BRIEF
            return json.dumps(compiled.sample(rng, usual, size), ensure_ascii=False)

        return nodes.WrittenText(MIN_JSON_LENGTH, nodes.LENGTH_LIMIT, write_json)

    def _tag(self, tag: formats.Tag) -> nodes.Node:
        return nodes.Series(
            [
                nodes.Text(tag.begin_text),
                self._node(tag.content),
                nodes.Alternation([nodes.Text(end) for end in tag.end_texts]),
            ]
        )

    def _triggered_tags(self, tags: formats.TriggeredTags) -> nodes.Node:
        """Returns at least one tag, as a client that asks for tags expects some."""
        tag = nodes.Alternation(self._nodes(tags.tags))
        parts: list[nodes.Node] = [tag]
        if not tags.at_least_one:
            parts.insert(0, nodes.FreeText())
        if not tags.stop_after_first:
            parts.append(nodes.Repetition(nodes.Series([nodes.FreeText(), tag])))
            parts.append(nodes.FreeText())
        return nodes.Series(parts)

    def _separated_tags(self, tags: formats.SeparatedTags) -> nodes.Node:
        """Returns at least one tag, as a client that asks for tags expects some."""
        tag = nodes.Alternation(self._nodes(tags.tags))
        if tags.stop_after_first:
            return tag
        separated = nodes.Series([nodes.Text(tags.separator), tag])
        return nodes.Series([tag, nodes.Repetition(separated)])
