"""Structural tags of vLLM and xgrammar: text around tags, each with content in its own format.

``{"type": "structural_tag", "format": ...}``, or the older ``{"structures": [...], "triggers": [...]}``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

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
    """Free text with tags, each begun by a trigger. Raises ValueError for a tag without a trigger."""

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
