"""What ``POST /v1/responses`` is given: the items of its input: turns, calls, results, thoughts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType, field

from app.http.errors import bad_request
from app.protocol.coercion import Misfit, convert_value, param_of

Status = Literal["in_progress", "completed", "incomplete"]
SAID_TO = ("input_text", "input_image", "input_file")
"""Types of parts that anybody but the assistant may say, and functions may return."""
SAID_BY_ASSISTANT = ("output_text", "refusal")


class ContentPart(Struct, kw_only=True):
    """One part of a content; which fields count depends on its type, and all others are ignored."""

    type: Literal[
        "input_text",
        "input_image",
        "input_file",
        "output_text",
        "refusal",
        "summary_text",
        "reasoning_text",
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] = "auto"

    def __post_init__(self) -> None:
        if self.type not in ("input_image", "input_file") and self.said is None:
            raise Misfit("a text", "refusal" if self.type == "refusal" else "text")

    @property
    def said(self) -> str | None:
        """The text; None of a part that has none."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | list[ContentPart]


def convert_content(value: object) -> object:
    """Returns the content in `value`. Raises `Misfit` at the part that does not fit."""
    is_text = value is None or isinstance(value, str)
    return value if is_text else convert_value(list[ContentPart], value)


class InputItem(Struct, kw_only=True):
    """One item. Which fields count depends on its type."""

    type: (
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "reasoning",
        ]
        | UnsetType
    ) = UNSET
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    """Of a message or a thought."""
    status: Status | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    """Of a function that is called."""
    arguments: str | None = None
    payload: str | None = field(name="input", default=None)
    """Of a custom tool that is called."""
    output: Content | None = None
    """Of a function or a custom tool."""
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"content": convert_content, "output": convert_content}

    def __post_init__(self) -> None:
        for key in NEEDED[self.kind]:
            if getattr(self, key) is None:
                raise Misfit("a value, it is missing", "input" if key == "payload" else key)
        for content, allowed in (
            (self.content, self._content_types()),
            (self.output, SAID_TO),
            (self.summary, ("summary_text",)),
        ):
            for part in content if isinstance(content, list) else ():
                if part.type not in allowed:
                    raise Misfit(f"parts of type {' or '.join(allowed)}")

    def _content_types(self) -> tuple[str, ...]:
        """Returns the types of parts of the content; a message of a response tells its own type."""
        if self.kind == "reasoning":
            return ("reasoning_text",)
        parts = self.content if isinstance(self.content, list) else ()
        told = self.type == "message" and self.role == "assistant"
        return (
            SAID_BY_ASSISTANT if told and any(part.type in SAID_BY_ASSISTANT for part in parts) else SAID_TO
        )

    @property
    def kind(self) -> str:
        """The type, which a message need not tell."""
        return "message" if self.type is UNSET else self.type

    @property
    def is_partial(self) -> bool:
        """A message or a thought that is to be continued, not answered."""
        return self.kind in ("message", "reasoning") and self.status in ("in_progress", "incomplete")


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("call_id", "name", "payload"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
}
"""Fields that an item of each type must have."""
UNSUPPORTED = {
    "additional_tools": ("role", "tools"),
    "apply_patch_call": ("call_id", "operation", "status"),
    "apply_patch_call_output": ("call_id", "status"),
    "code_interpreter_call": ("id", "code", "container_id", "outputs", "status"),
    "compaction": ("encrypted_content",),
    "compaction_trigger": (),
    "computer_call": ("id", "call_id", "pending_safety_checks", "status"),
    "computer_call_output": ("call_id", "output"),
    "configuration_update": (),
    "file_search_call": ("id", "queries", "status"),
    "image_generation_call": ("id", "result", "status"),
    "item_reference": ("id",),
    "local_shell_call": ("id", "action", "call_id", "status"),
    "local_shell_call_output": ("id", "output"),
    "mcp_approval_request": ("id", "arguments", "name", "server_label"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "mcp_call": ("id", "arguments", "name", "server_label"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result", "status"),
    "shell_call": ("action", "call_id"),
    "shell_call_output": ("call_id", "output"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "web_search_call": ("id", "action", "status"),
}
"""Types of items that fit the schema and become no part of a conversation, and what each must have."""


def convert_input(value: object) -> str | list[InputItem]:
    """Returns the input in `value`.

    Raises `Misfit`, always at the input as a whole, which is what clients know, and `ApiError` for items that
    fit and are not supported.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of items")
    items: list[InputItem] = []
    unsupported = ""
    for index, item in enumerate(value):
        kind = _unsupported(item)
        unsupported = unsupported or kind
        try:
            if not kind:
                items.append(convert_value(InputItem, item))
        except Misfit as misfit:
            where = param_of(("input", index, *misfit.path))
            raise Misfit(f"a text or a list of items, and at {where} {misfit.expected}") from None
    if unsupported:
        raise bad_request(f"Unsupported input item type: {unsupported}", "input")
    return items


def _unsupported(item: object) -> str:
    """Returns the type of an item that fits the schema and is not supported; empty for any other."""
    if not isinstance(item, dict) or "role" in item and "type" not in item:
        return ""
    kind = item.get("type")
    if kind is None and "role" not in item:
        kind = "item_reference"
    needed = UNSUPPORTED.get(kind) if isinstance(kind, str) else None
    has_all = needed is not None and item.keys() >= set(needed) and isinstance(item.get("id", ""), str)
    return str(kind) if has_all else ""
