"""Items of the input of ``POST /v1/responses``: messages, calls and results of tools, reasoning."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType, field

from app.core.base.clock.pause import Slices
from app.core.protocol.coercion import ConversionError, LaxFields, format_param
from app.core.protocol.convert import convert_value
from app.core.protocol.rules import get_field
from app.core.server.http.errors import bad_request

Status = Literal["in_progress", "completed", "incomplete"]

INPUT_PART_TYPES = ("input_text", "input_image", "input_file")
"""Types of parts in messages of all roles but the assistant, and in results of functions."""
ASSISTANT_PART_TYPES = ("output_text", "refusal")
REQUIRED_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("call_id", "name", "payload"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
}
UNSUPPORTED_TYPES = frozenset(
    (
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    )
)
"""Types of items that vLLM's schema has, but that it cannot convert to a conversation."""


class ContentPart(Struct, kw_only=True):
    """One part of a content; its type decides which fields are used, and which are ignored."""

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
        if self.type == "refusal" and self.refusal is None:
            raise ConversionError("a text", "refusal", kind="string_type")
        if self.type not in ("refusal", "input_image", "input_file") and self.text is None:
            raise ConversionError("a text", "text", kind="string_type")

    @property
    def text_or_refusal(self) -> str | None:
        """The part's text or refusal; None for an image or a file."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | list[ContentPart]


def convert_content(value: object) -> object:
    """Converts a text or parts; null is allowed.

    Raises:
        ConversionError: A part is invalid.
    """
    if value is None or isinstance(value, str):
        return value
    return convert_value(list[ContentPart], value)


class InputItem(Struct, kw_only=True):
    """One item of the input; its type decides which fields are used."""

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
    status: Status | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    payload: str | None = field(name="input", default=None)
    output: Content | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None

    lax_fields: ClassVar[LaxFields] = {
        "content": convert_content,
        "output": convert_content,
    }

    def __post_init__(self) -> None:
        for field_name in REQUIRED_FIELDS[self.kind]:
            if getattr(self, field_name) is None:
                raise ConversionError(
                    "provided",
                    "input" if field_name == "payload" else field_name,
                    kind="missing",
                )
        # Runs for each of 90,000 items while the decoder cannot be interrupted.
        if isinstance(self.content, list):
            _check_part_types(self.content, self._content_part_types())
        if isinstance(self.output, list):
            _check_part_types(self.output, INPUT_PART_TYPES)
        if self.summary is not None:
            _check_part_types(self.summary, ("summary_text",))

    def _content_part_types(self) -> Sequence[str]:
        if self.kind == "reasoning":
            return ("reasoning_text",)
        # Only a message that repeats an earlier response has the assistant's types, and a type.
        if self.type != "message" or self.role != "assistant" or not isinstance(self.content, list):
            return INPUT_PART_TYPES
        if any(part.type in ASSISTANT_PART_TYPES for part in self.content):
            return ASSISTANT_PART_TYPES
        return INPUT_PART_TYPES

    @property
    def kind(self) -> str:
        """The item's type; an item without a type is a message."""
        if self.type is UNSET:
            return "message"
        return self.type


def _check_part_types(content: Sequence[ContentPart], allowed_types: Sequence[str]) -> None:
    if any(part.type not in allowed_types for part in content):
        raise ConversionError(
            f"a list of parts of type {' or '.join(allowed_types)}", kind="literal_error"
        )


def convert_input(value: object) -> str | list[InputItem]:
    """Converts the input.

    Raises:
        ConversionError: The input is invalid. The path is the whole input, as in vLLM.
        ApiError: A valid item is not supported.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ConversionError("a string or a list of items", kind="string_type")
    items: list[InputItem] = []
    unsupported_types: list[str] = []
    slices = Slices()
    for index, item in enumerate(value):
        slices.spend()
        kind = get_field(item, "type")
        if isinstance(item, dict) and kind is None and "role" not in item and "id" in item:
            kind = "item_reference"
        if isinstance(kind, str) and kind in UNSUPPORTED_TYPES:
            unsupported_types.append(kind)
            continue
        try:
            items.append(convert_value(InputItem, item))
        except ConversionError as error:
            param = format_param(("input", index, *error.path))
            raise ConversionError(
                f"a string or a list of items; {param} should be {error.expected}", kind=error.kind
            ) from None
    if unsupported_types:
        raise bad_request(f"Unsupported input item type: {unsupported_types[0]}", "input")
    return items
