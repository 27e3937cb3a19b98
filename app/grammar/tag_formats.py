"""Structural tags as vLLM and xgrammar write them: text around tags, each with content of its own format.

``{"type": "structural_tag", "format": ...}``, or the older ``{"structures": [...], "triggers": [...]}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

MOST_CHARACTERS = 100_000
"""Characters of the longest structural tag; reading one takes up to 5 ms."""


class _Format(Struct, frozen=True, tag_field="type"):
    pass


class ConstString(_Format, frozen=True, tag="const_string"):
    """This very text."""

    value: str


class JsonContent(_Format, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: bool | dict[str, object]
    style: Literal["json"] = "json"


class AnyText(_Format, frozen=True, tag="any_text"):
    """Text of any kind."""


class AnyTokens(_Format, frozen=True, tag="any_tokens"):
    """Tokens of any kind."""


class TokenContent(_Format, frozen=True, tag="token"):
    """One token, by its text."""

    token: str


class RegexContent(_Format, frozen=True, tag="regex"):
    """A match of a regular expression."""

    pattern: str


class GrammarContent(_Format, frozen=True, tag="grammar"):
    """A text that a grammar derives, in GBNF or in Lark's notation."""

    grammar: str


class SequenceOf(_Format, frozen=True, tag="sequence"):
    """One element after the other."""

    elements: Formats


class AnyOf(_Format, frozen=True, tag="or"):
    """One of the elements."""

    elements: Formats


class Tag(_Format, frozen=True, tag="tag"):
    """Content between two marks."""

    begin: Mark
    content: Format
    end: Mark | Annotated[list[Mark], Meta(min_length=1)]

    @property
    def begin_text(self) -> str:
        """Text of the mark in front of the content."""
        return _text(self.begin)

    @property
    def end_texts(self) -> list[str]:
        """Texts of the marks behind the content, one of which is written."""
        return [_text(end) for end in (self.end if isinstance(self.end, list) else [self.end])]


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Text of any kind, in which a trigger begins one of the tags."""

    triggers: list[Annotated[str, Meta(min_length=1)]]
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        for _ in self.triggered():
            pass

    def triggered(self) -> Iterator[tuple[str, Tag]]:
        """Each tag with the trigger that begins it. Raises ValueError for a tag without one."""
        for tag in self.tags:
            trigger = next(filter(tag.begin_text.startswith, self.triggers), None)
            if trigger is None:
                raise ValueError(f"no trigger begins the tag {tag.begin_text[:40]!r}")
            yield trigger, tag


class SeparatedTags(_Format, frozen=True, tag="tags_with_separator"):
    """Tags with a text between them."""

    tags: Tags
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Optional(_Format, frozen=True, tag="optional"):
    """The content or nothing."""

    content: Format


class Star(_Format, frozen=True, tag="star"):
    """The content any number of times."""

    content: Format


class Plus(_Format, frozen=True, tag="plus"):
    """The content once or more."""

    content: Format


class Repeat(_Format, frozen=True, tag="repeat"):
    """The content `min` to `max` times; a negative `max` is no limit."""

    content: Format
    min: Annotated[int, Meta(ge=0)]
    max: int

    @property
    def limits(self) -> tuple[int, int | None]:
        """Fewest and most times."""
        return self.min, None if self.max < 0 else max(self.max, self.min)


Mark: TypeAlias = str | TokenContent
Format: TypeAlias = (
    ConstString
    | JsonContent
    | AnyText
    | AnyTokens
    | TokenContent
    | RegexContent
    | GrammarContent
    | SequenceOf
    | AnyOf
    | Tag
    | TriggeredTags
    | SeparatedTags
    | Optional
    | Star
    | Plus
    | Repeat
)
Formats: TypeAlias = Annotated[list[Format], Meta(min_length=1)]
Tags: TypeAlias = Annotated[list[Tag], Meta(min_length=1)]


class _Structure(Struct):
    begin: str
    end: str
    schema: bool | dict[str, object] | None = None


class _StructuralTag(Struct):
    format: Format | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None


def read_structural_tag(source: str) -> Format:
    """Returns the format of a structural tag, which is JSON. Raises ValueError for anything else."""
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"{len(source)} characters are too many")
    try:
        tag = msgspec.json.decode(source, type=_StructuralTag)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if tag.structures is not None:
        return _modern(tag.structures, tag.triggers or [])
    if tag.format is None:
        raise ValueError("it has no format")
    return tag.format


def _modern(structures: list[_Structure], triggers: list[str]) -> Format:
    """Returns the older notation in the words of the newer one."""
    tags = [
        {
            "begin": each.begin,
            "content": {"type": "json_schema", "json_schema": True if each.schema is None else each.schema},
            "end": each.end,
        }
        for each in structures
    ]
    return msgspec.convert({"triggers": triggers, "tags": tags}, TriggeredTags)


def _text(mark: Mark) -> str:
    return mark if isinstance(mark, str) else mark.token
