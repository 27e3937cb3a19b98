"""Structural tags of requests: their formats, and the reader of their JSON.

A structural tag is ``{"type": "structural_tag", "format": ...}``, or the older ``{"structures":
[...], "triggers": [...]}``: text around tags, each with content in its own format, as in vLLM and
xgrammar. Start reading at `read_structural_tag`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from config.untrusted import decode_untrusted

MAX_LENGTH = 100_000
"""Maximum length of a structural tag; reading one takes up to 5 ms."""


def read_structural_tag(source: str) -> Format:
    """Returns the format of the structural tag in the JSON `source`.

    Raises:
        ValueError: `source` is not a structural tag.
    """
    if len(source) > MAX_LENGTH:
        raise ValueError(f"the structural tag is too long: it has {len(source)} characters")
    tag = decode_untrusted(source, type=_StructuralTag)
    if tag.structures is not None:
        return TriggeredTags(tag.triggers, [structure.tag() for structure in tag.structures])
    if tag.format is None:
        raise ValueError("the structural tag has no format")
    return tag.format


class _Format(Struct, tag_field="type"):
    pass


class ConstString(_Format, tag="const_string"):
    """A literal text."""

    value: str


class Token(_Format, tag="token"):
    """The text of a special token."""

    token: str


class JsonContent(_Format, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: bool | dict[str, object]
    style: Literal["json"] = "json"


class AnyText(_Format, tag="any_text"):
    """Text of any kind."""


class AnyTokens(AnyText, tag="any_tokens"):
    """Tokens of any kind."""


class RegexContent(_Format, tag="regex"):
    """A text that a regular expression matches."""

    pattern: str


class GrammarContent(_Format, tag="grammar"):
    """A text derived by a grammar in GBNF or in Lark's EBNF."""

    grammar: str


class SequenceOf(_Format, tag="sequence"):
    """All of `elements` in their order."""

    elements: Formats


class AnyOf(_Format, tag="or"):
    """One of `elements`."""

    elements: Formats


class Tag(_Format, tag="tag"):
    """Content between two marks; one of several `end` marks is written."""

    begin: Mark
    content: Format
    end: Mark | Annotated[list[Mark], Meta(min_length=1)]

    @property
    def begin_text(self) -> str:
        """Text of the opening mark."""
        return _mark_text(self.begin)

    @property
    def end_texts(self) -> list[str]:
        """Texts of the possible closing marks."""
        if isinstance(self.end, list):
            return list(map(_mark_text, self.end))
        return [_mark_text(self.end)]


class TriggeredTags(_Format, tag="triggered_tags"):
    """Free text with tags; each tag starts with a trigger.

    Raises:
        ValueError: A tag starts with none of the triggers.
    """

    triggers: list[Annotated[str, Meta(min_length=1)]]
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        for tag in self.tags:
            self.trigger(tag)

    def trigger(self, tag: Tag) -> str:
        """Returns the first trigger with which `tag` starts. Raises ValueError without one."""
        for trigger in self.triggers:
            if tag.begin_text.startswith(trigger):
                return trigger
        raise ValueError(f"the tag {tag.begin_text[:40]!r} does not start with a trigger")


class SeparatedTags(_Format, tag="tags_with_separator"):
    """Tags with a text between them."""

    tags: Tags
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Star(_Format, tag="star"):
    """The content, any number of times."""

    content: Format

    @property
    def limits(self) -> tuple[int, int | None]:
        """Minimum and maximum number of repetitions; None is no limit."""
        return 0, None


class Plus(Star, tag="plus"):
    """The content, at least once."""

    limits = 1, None


class Optional(Star, tag="optional"):
    """The content, or nothing."""

    limits = 0, 1


class Repeat(Star, tag="repeat"):
    """The content, `min` to `max` times; a negative `max` is no limit."""

    min: Annotated[int, Meta(ge=0)]
    max: int

    @property
    def limits(self) -> tuple[int, int | None]:
        """Minimum and maximum number of repetitions; None is no limit."""
        if self.max < 0:
            return self.min, None
        return self.min, max(self.max, self.min)


Content: TypeAlias = JsonContent | AnyText | AnyTokens | RegexContent | GrammarContent
Format: TypeAlias = (
    (ConstString | Token | Content)
    | (SequenceOf | AnyOf | Tag | TriggeredTags | SeparatedTags)
    | (Star | Plus | Optional | Repeat)
)
Formats: TypeAlias = Annotated[list[Format], Meta(min_length=1)]
Tags: TypeAlias = Annotated[list[Tag], Meta(min_length=1)]
Mark: TypeAlias = str | Token


class _Structure(Struct):
    """A tag of the older form."""

    begin: str
    end: str
    schema: bool | dict[str, object]

    def tag(self) -> Tag:
        return Tag(self.begin, JsonContent(self.schema), self.end)


class _StructuralTag(Struct):
    format: Format | None = None
    structures: Annotated[list[_Structure], Meta(min_length=1)] | None = None
    triggers: list[Annotated[str, Meta(min_length=1)]] = []


def _mark_text(mark: Mark) -> str:
    if isinstance(mark, str):
        return mark
    return mark.token
