"""What ``POST /v1/responses`` is given: the items of its input, and the tools that a reply may call.

Items are turns, calls, their results, thoughts. Tools stay dicts, because the answer repeats them: functions
with every field that OpenAI's SDK knows, in its order, as vLLM repeats them; all others as they came.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct

from app.clock.pause import Slices
from app.http.errors import bad_request
from app.protocol.coercion import JsonObject, Misfit, convert, param_of

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
    image_url: str | JsonObject | None = None
    input_audio: JsonObject | None = None
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
    def audio(self) -> JsonObject:
        """`data` and `format` of a sound, which some clients nest and some do not."""
        return self.input_audio or {"data": self.data or "", "format": self.format or ""}


Content = str | list[ContentPart]


def convert_content(value: object, within: Slices) -> Content | None:
    """The content in `value`. Raises `Misfit` at the part that does not fit."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of parts")
    return _each(ContentPart, value, within)


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

    lax: ClassVar[Mapping[str, Hashable]] = {"content": convert_content, "output": convert_content}

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


def convert_input(value: object, within: Slices) -> str | list[InputItem]:
    """The input in `value`. Raises `Misfit`, always at the input as a whole, which is what clients know."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of items")
    try:
        return _each(InputItem, value, within)
    except Misfit as misfit:
        where = param_of(("input", *misfit.path))
        raise Misfit(f"a text or a list of items, and at {where} {misfit.expected}") from None


def _each(kind: type[T], values: Sequence[object], within: Slices) -> list[T]:
    converted: list[T] = []
    try:
        for value in values:
            converted.append(convert(kind, value, within))
    except Misfit as misfit:
        raise misfit.under(len(converted)) from None
    return converted


ToolParam = JsonObject

OTHER_TOOLS = frozenset(
    (
        *("apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search"),
        *("image_generation", "local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell"),
        *("tool_search", "web_search", "web_search_2025_08_26", "web_search_preview"),
        "web_search_preview_2025_03_11",
    )
)
"""Types of tools that are taken and never called, as by a vLLM without tool servers."""
_NAMING = 3
"""Values that a tool counts as whose name is looked for."""


class FunctionTool(Struct, kw_only=True):
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: JsonObject | None = None
    strict: bool | None = None
    type: str = "function"
    allowed_callers: list[str] | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    defer_loading: bool | None = None
    description: str | None = None
    output_schema: JsonObject | None = None


class FunctionChoice(Struct, kw_only=True):
    """The one function that must be called."""

    name: str
    type: str = "function"


class AllowedChoice(Struct, kw_only=True):
    """The tools that may be called (mode `auto`), or of which one must be (`required`)."""

    mode: str
    tools: list[JsonObject]
    type: str = "allowed_tools"

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "required"):
            raise Misfit("auto or required", "mode")


def convert_tools(value: object, within: Slices) -> list[ToolParam]:
    """The tools in `value`; functions may be nested as in a chat. Raises `Misfit`."""
    if not isinstance(value, list):
        raise Misfit("a list of tools")
    return [_convert_tool(index, tool, within) for index, tool in enumerate(value)]


def _convert_tool(index: int, tool: object, within: Slices) -> ToolParam:
    if not isinstance(tool, dict):
        raise Misfit("a tool object", index)
    kind = tool.get("type", "function")
    if kind == "function":
        try:
            return _as_dict(convert(FunctionTool, _flat(tool), within))
        except Misfit as misfit:
            raise misfit.under("function").under(index) from None
    if not isinstance(kind, str) or kind not in OTHER_TOOLS:
        raise Misfit("a tool of type function, or of another type that is known", index)
    return tool


def convert_tool_choice(value: object, within: Slices) -> str | JsonObject:
    """The choice in `value`; a function may be nested as in a chat. Raises `Misfit`."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and isinstance(kind, str):
        if kind == "function":
            return _as_dict(convert(FunctionChoice, _flat(value), within))
        if kind == "allowed_tools":
            nested = value.get("allowed_tools")
            allowed = nested if isinstance(nested, dict) else value
            return _as_dict(convert(AllowedChoice, {**allowed, "type": kind}, within))
        if kind in OTHER_TOOLS:
            return value
    raise Misfit("none, auto, required, or an object that names a tool")


def _as_dict(converted: Struct) -> JsonObject:
    fields: JsonObject = msgspec.to_builtins(converted)
    return fields


def check_tool_use(tools: object, choice: object, within: Slices) -> None:
    """What must be called is among the tools. Raises `ApiError`."""
    named = isinstance(choice, dict) and choice.get("type") == "function"
    if not tools:
        if named or choice == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
    elif named and isinstance(tools, list) and not _is_among(name_of(choice), tools, within):
        raise bad_request("tool_choice names a function that is not among tools", "tool_choice")


def _is_among(name: str | None, tools: Sequence[object], within: Slices) -> bool:
    for tool in tools:
        within.spend(_NAMING)
        if name and name_of(tool) == name:
            return True
    return False


def name_of(value: object) -> str | None:
    """The name of a function, or of the choice of one; None when there is none."""
    name = _flat(value).get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None


def _flat(value: Mapping[str, object]) -> JsonObject:
    """A function, or the choice of one, without the nesting that chats have."""
    nested = value.get("function")
    return {**(nested if isinstance(nested, dict) else value), "type": "function"}
