"""Grammars and structural tags of requests: the reader of tags, and the compiler of both.

A structural tag is ``{"type": "structural_tag", "format": ...}``, or the older ``{"structures":
[...], "triggers": [...]}``: text around tags, each with content in its own format, as in vLLM and
xgrammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from app.base.clock.pause import call_long
from app.engine.forms.grammar.notations import parse_grammar
from app.engine.forms.schema import CHARACTER, Schemas, Size
from app.engine.forms.schema import derivation as nodes
from app.engine.forms.schema.bounds import SchemaError, WorkBudget
from app.engine.forms.schema.patterns import Pattern
from config.settings import ToolSettings

MOST_CHARACTERS = 100_000
"""Characters of the longest structural tag; reading one takes up to 5 ms."""


class _Format(Struct, tag_field="type"):
    pass


class ConstString(_Format, tag="const_string"):
    value: str


class Token(_Format, tag="token"):
    token: str


class JsonContent(_Format, tag="json_schema"):
    json_schema: bool | dict[str, object]
    style: Literal["json"] = "json"


class AnyText(_Format, tag="any_text"):
    """Text of any kind."""


class AnyTokens(AnyText, tag="any_tokens"):
    """Tokens of any kind."""


class RegexContent(_Format, tag="regex"):
    pattern: str


class GrammarContent(_Format, tag="grammar"):
    """A text derived by a grammar in GBNF or in Lark's EBNF."""

    grammar: str


class SequenceOf(_Format, tag="sequence"):
    elements: Formats


class AnyOf(_Format, tag="or"):
    elements: Formats


class Tag(_Format, tag="tag"):
    """Content between two marks; one of several `end` marks is written."""

    begin: Mark
    content: Format
    end: Mark | Annotated[list[Mark], Meta(min_length=1)]

    @property
    def begin_text(self) -> str:
        return _text(self.begin)

    @property
    def end_texts(self) -> list[str]:
        return list(map(_text, self.end if isinstance(self.end, list) else [self.end]))


class TriggeredTags(_Format, tag="triggered_tags"):
    """Free text with tags, each begun by a trigger.

    Raises ValueError for a tag without a trigger.
    """

    triggers: list[Annotated[str, Meta(min_length=1)]]
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        for tag in self.tags:
            self.trigger(tag)

    def trigger(self, tag: Tag) -> str:
        for trigger in filter(tag.begin_text.startswith, self.triggers):
            return trigger
        raise ValueError(f"no trigger begins the tag {tag.begin_text[:40]!r}")


class SeparatedTags(_Format, tag="tags_with_separator"):
    tags: Tags
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Star(_Format, tag="star"):
    content: Format

    @property
    def limits(self) -> tuple[int, int | None]:
        """Fewest and most repetitions; None is no limit."""
        return 0, None


class Plus(Star, tag="plus"):
    limits = 1, None


class Optional(Star, tag="optional"):
    limits = 0, 1


class Repeat(Star, tag="repeat"):
    """The content, `min` to `max` times; a negative `max` is no limit."""

    min: Annotated[int, Meta(ge=0)]
    max: int

    @property
    def limits(self) -> tuple[int, int | None]:
        return self.min, None if self.max < 0 else max(self.max, self.min)


Format: TypeAlias = (
    (ConstString | Token | JsonContent | AnyText | AnyTokens | RegexContent | GrammarContent)
    | (SequenceOf | AnyOf | Tag | TriggeredTags | SeparatedTags)
    | (Star | Plus | Optional | Repeat)
)
Formats: TypeAlias = Annotated[list[Format], Meta(min_length=1)]
Tags: TypeAlias = Annotated[list[Tag], Meta(min_length=1)]
Mark: TypeAlias = str | Token


class _Structure(Struct):
    begin: str
    end: str
    schema: bool | dict[str, object] | None = None

    def tag(self) -> Tag:
        return Tag(self.begin, JsonContent(True if self.schema is None else self.schema), self.end)


class _StructuralTag(Struct):
    format: Format | None = None
    structures: Annotated[list[_Structure], Meta(min_length=1)] | None = None
    triggers: list[Annotated[str, Meta(min_length=1)]] = []


def read_structural_tag(source: str) -> Format:
    """Returns the format of a structural tag in JSON. Raises ValueError for anything else."""
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"{len(source)} characters are too many")
    try:
        tag = msgspec.json.decode(source, type=_StructuralTag)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if tag.structures is not None:
        return TriggeredTags(tag.triggers, [each.tag() for each in tag.structures])
    if tag.format is None:
        raise ValueError("it has no format")
    return tag.format


def _text(mark: Mark) -> str:
    return mark if isinstance(mark, str) else mark.token


TAG_ROOT = ""
"""Root rule of a structural tag; rules of inner grammars never have this name."""
SHORTEST_JSON = 2
ROOMY = 60
"""Characters from which JSON need not be brief."""


def compile_grammar(source: str) -> nodes.Grammar:
    """Returns the grammar in `source`, GBNF or Lark's EBNF.

    Raises SchemaError for anything else.
    """
    return call_long(CHARACTER * len(source), lambda: nodes.Grammar(*parse_grammar(source)))


def compile_structural_tag(source: str, schemas: Schemas) -> nodes.Grammar:
    """Returns the grammar of a structural tag in JSON. Raises SchemaError for anything else."""
    return call_long(CHARACTER * len(source), _tag_grammar, source, schemas)


def _tag_grammar(source: str, schemas: Schemas) -> nodes.Grammar:
    rules: dict[str, nodes.Node] = {}
    try:
        rules[TAG_ROOT] = _node(read_structural_tag(source), rules, schemas)
        return nodes.Grammar(rules, TAG_ROOT)
    except RecursionError:
        raise SchemaError("it is too deep") from None
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _node(found: Format, rules: dict[str, nodes.Node], schemas: Schemas) -> nodes.Node:
    """Returns the node of a format, and adds the rules of inner grammars to `rules`."""

    def each(inner: Sequence[Format]) -> list[nodes.Node]:
        return [_node(it, rules, schemas) for it in inner]

    match found:
        case ConstString(value=text) | Token(token=text):
            return nodes.Text(text)
        case JsonContent(json_schema=schema):
            compiled = schemas.compile(schema)

            def write(rng: Random, budget: WorkBudget, usual: ToolSettings, length: int) -> str:
                size = Size.BRIEF if length < ROOMY else Size.USUAL
                return json.dumps(compiled.sample(rng, usual, size), ensure_ascii=False)

            return nodes.WrittenText(SHORTEST_JSON, nodes.LONGEST, write)
        case AnyText():
            return nodes.FREE_TEXT
        case RegexContent(pattern=pattern):
            return nodes.as_node(Pattern(pattern))
        case GrammarContent(grammar=source):
            inner, root = parse_grammar(source, f"{len(rules)}:")
            rules |= inner
            return nodes.DerivationRule(root)
        case SequenceOf(elements=elements):
            return nodes.Series(each(elements))
        case AnyOf(elements=elements):
            return nodes.Alternation(each(elements))
        case Tag():
            closing = nodes.Alternation([nodes.Text(end) for end in found.end_texts])
            return nodes.Series([nodes.Text(found.begin_text), *each([found.content]), closing])
        case TriggeredTags() | SeparatedTags():
            # One tag at least, as a client that asks for tags expects some.
            tag = nodes.Alternation(each(found.tags))
            if isinstance(found, SeparatedTags):
                more_tags = nodes.Repetition(nodes.Series([nodes.Text(found.separator), tag]))
                return tag if found.stop_after_first else nodes.Series([tag, more_tags])
            before: list[nodes.Node] = [] if found.at_least_one else [nodes.FREE_TEXT]
            more: list[nodes.Node] = [
                nodes.Repetition(nodes.Series([nodes.FREE_TEXT, tag])),
                nodes.FREE_TEXT,
            ]
            return nodes.Series([*before, tag, *([] if found.stop_after_first else more)])
    return nodes.Repetition(_node(found.content, rules, schemas), *found.limits)
