"""``POST /v1/responses``: the body, the items of its input, and the response (vllm-api.md section 6).

Answers have their keys in vLLM's order; `Raw` is encoded JSON.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from app.serving.http.errors import bad_request
from app.serving.protocol import rules
from app.serving.protocol.coercion import JsonObject, Misfit, convert, convert_value, param_of
from app.serving.protocol.common import ECTransferParams, KVTransferParams, PerRequestMetrics
from app.serving.protocol.decoding import RawRequest
from app.serving.protocol.options import Effort, SamplingFields
from app.serving.protocol.response_tools import (
    ToolParam,
    check_tool_use,
    convert_tool_choice,
    convert_tools,
    resolve_choice,
)

Status = Literal["in_progress", "completed", "incomplete"]
SAID_TO = ("input_text", "input_image", "input_file")
"""Types of parts in messages of all roles but the assistant, and in results of functions."""
SAID_BY_ASSISTANT = ("output_text", "refusal")


class ContentPart(Struct, kw_only=True):
    """One part of a content; its type decides which fields are used, and all others are ignored."""

    type: Literal[
        "input_text", "input_image", "input_file", "output_text", "refusal", "summary_text", "reasoning_text"
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
        """The part's text or refusal; None without one."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | list[ContentPart]


def convert_content(value: object) -> object:
    """Converts a text or parts; null is allowed. Raises `Misfit` at the wrong part."""
    is_text = value is None or isinstance(value, str)
    return value if is_text else convert_value(list[ContentPart], value)


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

    lax: ClassVar[Mapping[str, Hashable]] = {"content": convert_content, "output": convert_content}

    def __post_init__(self) -> None:
        for key in NEEDED[self.kind]:
            if getattr(self, key) is None:
                raise Misfit("a value, it is missing", "input" if key == "payload" else key)
        parts = self.content if isinstance(self.content, list) else []
        types: tuple[str, ...] = ("reasoning_text",) if self.kind == "reasoning" else SAID_TO
        if self.type == "message" and self.role == "assistant":  # a message of an earlier response
            types = SAID_BY_ASSISTANT if any(part.type in SAID_BY_ASSISTANT for part in parts) else SAID_TO
        outputs = self.output if isinstance(self.output, list) else []
        for group, allowed in ((parts, types), (outputs, SAID_TO), (self.summary or [], ("summary_text",))):
            if any(part.type not in allowed for part in group):
                raise Misfit(f"parts of type {' or '.join(allowed)}")

    @property
    def kind(self) -> str:
        return "message" if self.type is UNSET else self.type


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("call_id", "name", "payload"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
}
UNSUPPORTED = frozenset(
    ("additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call")
    + ("compaction", "compaction_trigger", "computer_call", "computer_call_output", "configuration_update")
    + ("file_search_call", "image_generation_call", "item_reference", "local_shell_call")
    + ("local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call")
    + ("mcp_list_tools", "program", "program_output", "shell_call", "shell_call_output")
    + ("tool_search_call", "tool_search_output", "web_search_call")
)
"""Types of items that vLLM's schema has, and no conversation may have."""


def convert_input(value: object) -> str | list[InputItem]:
    """Converts the input.

    Raises `Misfit`, whose path is the whole input, as in vLLM, and `ApiError` for unsupported valid items.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Misfit("a text or a list of items")
    items: list[InputItem] = []
    unsupported = ""
    for index, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind is None and "role" not in item and "id" in item:
            kind = "item_reference"
        if isinstance(kind, str) and kind in UNSUPPORTED:
            unsupported = unsupported or kind
            continue
        try:
            items.append(convert_value(InputItem, item))
        except Misfit as misfit:
            where = param_of(("input", index, *misfit.path))
            raise Misfit(f"a text or a list of items, and at {where} {misfit.expected}") from None
    if unsupported:
        raise bad_request(f"Unsupported input item type: {unsupported}", "input")
    return items


LOGPROBS = "message.output_text.logprobs"
"""Value in `include` that requests log probabilities."""

Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]
Summary = Literal["auto", "concise", "detailed"]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class Reasoning(msgspec.Struct, kw_only=True):
    """Options for thinking; only `effort` has an effect. Fields are in the answer's order."""

    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: Effort | None = None
    generate_summary: Summary | None = None
    mode: str | None = None
    summary: Summary | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """The form of the reply's text; all fields but `type` are for ``json_schema``."""

    name: str | None = None
    json_schema: JsonObject | None = msgspec.field(default=None, name="schema")
    type: Literal["text", "json_schema", "json_object"]
    description: str | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema" and (self.name is None or self.json_schema is None):
            raise Misfit("a name and a schema")

    def told(self) -> JsonObject:
        told: JsonObject = msgspec.to_builtins(self)
        return told if self.type == "json_schema" else {"type": self.type}


def convert_format(value: object) -> TextFormat | None:
    """Converts a text format. Raises `Misfit` as for the first form that vLLM tries, a text."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    try:
        return convert(TextFormat, {"type": kind} if kind in ("text", "json_object") else value)
    except Misfit:
        path = ("ResponseFormatText", "type") if isinstance(value, dict) else ("ResponseFormatText",)
        raise Misfit("text, json_object, or json_schema with a name and a schema", *path) from None


def convert_history(value: object) -> list[JsonObject] | None:
    try:
        history: list[JsonObject] | None = convert_value(list[JsonObject] | None, value)
        return history
    except Misfit as misfit:
        kind = ("Message",) if misfit.path else ()  # the kind that vLLM tries first
        raise Misfit(misfit.expected, *misfit.path, *kind) from None


class TextConfig(msgspec.Struct, kw_only=True):
    """Options for the reply's text; `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"format": convert_format}


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of ``POST /v1/responses``, with every field of vLLM.

    None is the server's default where no other default is given.
    """

    background: bool | None = False
    include: list[Include] | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: object = None
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    text: TextConfig | None = None
    tool_choice: str | JsonObject = "auto"
    """Never ``auto`` after decoding when there are no tools."""
    tools: list[ToolParam] = []
    top_logprobs: int | None = 0
    truncation: Literal["auto", "disabled"] | None = "disabled"
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    prompt_cache_key: str | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    enable_response_messages: bool = False
    """Adds the prompt and the reply to the answer, as texts and token ids."""
    previous_input_messages: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {
        "input": convert_input,
        "previous_input_messages": convert_history,
        "tool_choice": convert_tool_choice,
        "tools": convert_tools,
    }
    absent: ClassVar[Mapping[str, object]] = {"store": True, "tool_choice": "auto"}

    def __post_init__(self) -> None:
        choice = self.tool_choice
        if self.top_logprobs is None:
            self.top_logprobs = 0
        if not self.tools and choice == "auto":
            self.tool_choice = "none"
        elif self.tools and isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
            self.tool_choice = resolve_choice(choice, self.tools)

    @property
    def logprobs(self) -> int | None:
        return self.top_logprobs if LOGPROBS in (self.include or ()) else None

    def check_rules(self: ResponsesRequest | RawRequest) -> None:
        check_tool_use(self.tools, self.tool_choice)
        if self.prompt is not None:
            raise bad_request("prompt templates are not kept here", "prompt")
        if self.background and not self.store:
            raise bad_request("background needs store=true", "background")
        rules.check_cache_salt(self.cache_salt)


class ResponseObject(Struct, kw_only=True):
    """A response in one of its states, with keys in vLLM's order. `created_at` is in Unix seconds.

    `status`: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    """

    id: str
    created_at: int
    incomplete_details: JsonObject | None = None
    instructions: str | None
    metadata: Mapping[str, str] | None
    model: str
    object: str = "response"
    output: Sequence[JsonObject | Raw] | Raw = ()
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Raw
    tools: Raw
    top_p: float
    background: bool
    max_output_tokens: int
    max_tool_calls: int | None
    previous_response_id: str | None
    prompt: None = None
    reasoning: Reasoning | None
    service_tier: str
    status: str = "in_progress"
    text: Raw
    top_logprobs: int | None
    truncation: str
    usage: JsonObject | None = None
    user: str | None
    metrics: PerRequestMetrics | UnsetType = UNSET
    presence_penalty: float
    frequency_penalty: float
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    input_messages: Sequence[JsonObject] | None = None
    output_messages: Sequence[JsonObject] | None = None
    error: JsonObject | UnsetType = UNSET
