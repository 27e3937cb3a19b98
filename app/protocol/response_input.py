"""The items that the input of ``POST /v1/responses`` consists of: turns, calls, their results, thoughts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from app.protocol.coercion import Misfit, convert
from app.protocol.paths import param_of

T = TypeVar("T", bound=Struct)

PartType = Literal[
    "input_text",
    "output_text",
    "text",
    "summary_text",
    "reasoning_text",
    "refusal",
    "input_image",
    "input_audio",
]


class ContentPart(Struct, kw_only=True):
    """One part of a content; which fields count depends on its type, and all others are ignored."""

    type: PartType = "input_text"
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    data: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.type == "input_image":
            if not self.url:
                raise Misfit("the URL of an image", "image_url")
        elif self.type != "input_audio" and self.said is None:
            raise Misfit("a text", "refusal" if self.type == "refusal" else "text")

    @property
    def said(self) -> str | None:
        """The text; None of a part that has none."""
        return self.refusal if self.type == "refusal" else self.text

    @property
    def url(self) -> str | None:
        """Where an image is; a data URL perhaps."""
        url = self.image_url.get("url") if isinstance(self.image_url, dict) else self.image_url
        return url if isinstance(url, str) else None

    @property
    def audio(self) -> dict[str, Any]:
        """`data` and `format` of a sound, which some clients nest and some do not."""
        return self.input_audio or {"data": self.data or "", "format": self.format or ""}


Content = str | list[ContentPart]


def convert_content(value: Any) -> Content | None:
    """The content in `value`. Raises `Misfit` at the part that does not fit."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of parts")
    return _each(ContentPart, value)


class InputItem(Struct, kw_only=True):
    """One item; without a type it is a message. Which fields count depends on its type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    """Of a message or a thought."""
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    """Of a function."""
    summary: list[ContentPart] = []
    encrypted_content: str | None = None

    lax: ClassVar[Mapping[str, Any]] = {"content": convert_content, "output": convert_content}

    def __post_init__(self) -> None:
        for key in NEEDED[self.type]:
            if getattr(self, key) is None:
                raise Misfit("a value, it is missing", key)

    @property
    def is_partial(self) -> bool:
        """A message of the assistant that is to be continued, not answered."""
        return self.role == "assistant" and self.status in ("in_progress", "incomplete")


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "reasoning": (),
}
"""Fields that an item of each type must have."""


def convert_input(value: Any) -> str | list[InputItem]:
    """The input in `value`. Raises `Misfit`, always at the input as a whole, which is what clients know."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of items")
    try:
        return _each(InputItem, value)
    except Misfit as misfit:
        where = param_of(("input", *misfit.path))
        raise Misfit(f"a text or a list of items, and at {where} {misfit.expected}") from None


def _each(kind: type[T], values: list[Any]) -> list[T]:
    converted: list[T] = []
    try:
        for value in values:
            converted.append(convert(kind, value))
    except Misfit as misfit:
        raise misfit.under(len(converted)) from None
    return converted
