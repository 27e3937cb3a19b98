"""``POST /v1/responses``: the body and the response.

Answers have their keys in vLLM's order; `Raw` is encoded JSON. `response_items` has the items of
the input, and `response_chat` converts a body to a chat.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from app.core.protocol import rules
from app.core.protocol.coercion import ConversionError, JsonObject, LaxFields
from app.core.protocol.common import ECTransferParams, KVTransferParams, PerRequestMetrics
from app.core.protocol.convert import convert, convert_value
from app.core.protocol.decoding import RawRequest
from app.core.protocol.options import Effort, SamplingFields
from app.core.server.http.errors import bad_request
from app.extensions.responses import tools as response_tools
from app.extensions.responses.protocol_items import InputItem, convert_input

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


class Reasoning(Struct, kw_only=True):
    """Options for thinking, in the answer's order; only `effort` has an effect."""

    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: Effort | None = None
    generate_summary: Summary | None = None
    mode: str | None = None
    summary: Summary | None = None


class TextFormat(Struct, kw_only=True):
    """The form of the reply's text; all fields except `type` are for ``json_schema``."""

    name: str | None = None
    json_schema: JsonObject | None = field(default=None, name="schema")
    type: Literal["text", "json_schema", "json_object"]
    description: str | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema" and (self.name is None or self.json_schema is None):
            raise ConversionError("an object with a name and a schema", kind="missing")

    def to_json(self) -> JsonObject:
        """Returns the form that the answer repeats."""
        if self.type != "json_schema":
            return {"type": self.type}
        fields: JsonObject = msgspec.to_builtins(self)
        return fields


def convert_format(value: object) -> TextFormat | None:
    """Converts a text format.

    Raises:
        ConversionError: The format is invalid. The path is that of the first form that vLLM tries,
            plain text.
    """
    if value is None:
        return None
    kind = rules.get_field(value, "type")
    fields = {"type": kind} if kind in ("text", "json_object") else value
    try:
        return convert(TextFormat, fields)
    except ConversionError:
        path = ["ResponseFormatText"]
        if isinstance(value, dict):
            path.append("type")
        raise ConversionError(
            "text, json_object, or a json_schema that has a name and a schema",
            *path,
            kind="literal_error",
        ) from None


def convert_history(value: object) -> list[JsonObject] | None:
    """Converts `previous_input_messages`.

    Raises:
        ConversionError: The value is not a list of objects. The path of an invalid item ends in the
            kind of message that vLLM tries first.
    """
    if value is None:
        return None
    try:
        history: list[JsonObject] = convert_value(list[JsonObject], value)
        return history
    except ConversionError as error:
        if not error.path:
            raise
        raise error.moved(*error.path, "Message") from None


class TextConfig(Struct, kw_only=True):
    """Options for the reply's text; `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    lax_fields: ClassVar[LaxFields] = {"format": convert_format}


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of ``POST /v1/responses``, with every field of vLLM.

    A default of None stands for the server's default.
    """

    joins_items: ClassVar[bool] = True
    """Consecutive items of the assistant are one message of the prompt."""

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
    tools: list[response_tools.ToolParam] = []
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

    lax_fields: ClassVar[LaxFields] = {
        "input": convert_input,
        "previous_input_messages": convert_history,
        "tool_choice": response_tools.convert_tool_choice,
        "tools": response_tools.convert_tools,
    }
    rule_defaults: ClassVar[JsonObject] = {"store": True, "tool_choice": "auto"}

    def __post_init__(self) -> None:
        choice = self.tool_choice
        if self.top_logprobs is None:
            self.top_logprobs = 0
        if not self.tools and choice == "auto":
            self.tool_choice = "none"
        elif self.tools and response_tools.is_named_choice(choice):
            self.tool_choice = response_tools.resolve_choice(choice, self.tools)

    @property
    def logprobs(self) -> int | None:
        """Alternatives per generated token; None without log probabilities."""
        return self.top_logprobs if LOGPROBS in (self.include or ()) else None

    def repeat_cache_fields(self, response: "ResponseObject") -> None:
        """Sets the fields of `response` that repeat those of the prompt cache, if there are any."""

    def check_rules(self: "ResponsesRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        response_tools.check_tool_use(self.tools, self.tool_choice)
        if self.prompt is not None:
            raise bad_request("prompt template is not supported", "prompt")
        if self.background and not self.store:
            raise bad_request("background can only be used when `store` is true", "background")
        rules.check_cache_salt(self.cache_salt)


class ResponseObject(Struct, kw_only=True):
    """A response in one of its states, with keys in vLLM's order. `created_at` is Unix seconds.

    `status`: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    """

    schemas: ClassVar[Sequence[str]] = ("ResponsesResponse",)
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
    prompt_cache_options: JsonObject | None | UnsetType = UNSET
    prompt_cache_key: str | None | UnsetType = UNSET
    prompt_cache_retention: str | None | UnsetType = UNSET
    reasoning: Reasoning | None
    safety_identifier: str | None | UnsetType = UNSET
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
    error: JsonObject | None | UnsetType = UNSET


class SeparateItemsRequest(ResponsesRequest, kw_only=True):
    """The same body for versions where each item is a separate message."""

    schemas: ClassVar[Sequence[str]] = ("ResponsesRequest",)
    joins_items: ClassVar[bool] = False
