"""``POST /v1/chat/completions`` and its batch: the bodies and their answers (vllm-api.md 3.1, 3.3, 3.4).

Answers have their keys in vLLM's order; UNSET fields are omitted. `Raw` is encoded JSON.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from app.serving.http.errors import bad_request
from app.serving.protocol import common, rules
from app.serving.protocol.coercion import JsonObject, Misfit
from app.serving.protocol.decoding import RawRequest
from app.serving.protocol.messages import Message, check_tool_calls, convert_messages, normalize_messages
from app.serving.protocol.options import Effort, GenerationFields, Tool, ToolChoice
from app.serving.protocol.rules import part

Conversations = list[list[Message]]


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """The body of ``POST /v1/chat/completions``, with every field of vLLM. None: the server's default."""

    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | UnsetType = UNSET
    """Never UNSET after decoding: the default is ``auto`` with tools, else ``none``."""
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True

    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    return_prompt_text: bool | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"messages": convert_messages, "tool_choice": ToolChoice}
    absent: ClassVar[Mapping[str, object]] = {"messages": [], "tool_choice": "none"}

    def __post_init__(self) -> None:
        if self.tool_choice is UNSET:
            self.tool_choice = "auto" if self.tools else "none"
        if self.top_logprobs is None:
            self.top_logprobs = 0
        super().__post_init__()

    def check_rules(self: ChatCompletionRequest | RawRequest) -> None:
        if not isinstance(self.messages, list | dict | str):
            raise bad_request("messages must be a list")
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)
        rules.check_tools(self.tools, self.tool_choice)
        rules.check_structured_outputs(self.structured_outputs, None, self.tool_choice)
        rules.check_chat_logprobs(self)
        rules.check_stream_options(self.stream_options, self.stream)
        rules.check_last(self)
        normalize_messages(self.messages)

    def check_converted(self) -> None:
        for message in self.messages:
            if "tool_calls" in message:
                check_tool_calls(message)


def convert_conversations(value: object) -> Conversations:
    if not isinstance(value, list) or not value:
        raise Misfit("a list of conversations")
    for index, conversation in enumerate(value):
        try:
            if not convert_messages(conversation):
                raise Misfit("a message at least")
        except Misfit as misfit:
            raise misfit.under(index) from None
    return value


BATCH_LATE = frozenset(
    (
        *("response_format", "tools", "stream", "stream_options", "reasoning_effort", "parallel_tool_calls"),
        *("min_tokens", "stop_token_ids", "ignore_eos", "allowed_token_ids", "bad_words", "prompt_logprobs"),
        *("truncate_prompt_tokens", "truncation_side", "documents", "vllm_xargs", "kv_transfer_params"),
        *("ec_transfer_params", "repetition_detection", "stream_interval", "skip_special_tokens"),
        *("add_special_tokens", "return_prompt_text", "session_id", "mm_payload", "return_mm_kwargs"),
    )
)


class BatchChatRequest(ChatCompletionRequest, kw_only=True):
    """Several conversations, each with one choice. vLLM checks the fields in `BATCH_LATE` late."""

    messages: Conversations  # type: ignore[assignment]
    tool_choice: Literal["none"] | None = "none"
    best_of: int | None = None
    early_stopping: bool = False
    guided_decoding_backend: str | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"messages": convert_conversations}

    def check_rules(self: BatchChatRequest | RawRequest) -> None:
        if self.use_beam_search:
            raise bad_request("A batch does not go with beam search.", "use_beam_search")
        rules.check_chat_logprobs(self)
        if part(self.kv_transfer_params, "prompt_token_ids") is not None:
            param = "kv_transfer_params.prompt_token_ids"
            raise bad_request("One prompt of token ids cannot serve several conversations.", param)
        if self.n not in (None, 1):
            raise bad_request("Every conversation of a batch has one choice: n must be 1.", "n")
        rules.check_tools(self.tools, "none")
        rules.check_stream_options(self.stream_options, self.stream)
        for conversation in self.messages if isinstance(self.messages, list) else ():
            normalize_messages(conversation)
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)
        rules.check_last(self)

    def check_converted(self) -> None:
        self.tools, self.stream = None, False
        for conversation in self.messages:
            for message in conversation:
                check_tool_calls(message)


class ContentBlock(Struct, omit_defaults=True):
    """A text or an image, whose address is under `url`."""

    type: Literal["text", "image_url"]
    text: str | UnsetType = UNSET
    image_url: Mapping[str, str] | UnsetType = UNSET


Content = str | Raw | Sequence[ContentBlock]


class FunctionCall(Struct):
    """Name and arguments of a called function; `arguments` is JSON as text, in chunks only a part."""

    name: str | UnsetType = UNSET
    arguments: str | Raw | UnsetType = UNSET


class ToolCall(Struct):
    """One tool call. `index`, the number of the call in its choice, is for chunks only."""

    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET


class ChatMessage(Struct):
    role: str
    content: Content | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET
    reasoning: str | Raw | None = None


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: common.LogprobContent | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    routed_experts: None = None


class ChatCompletion(common.WholeAnswer, kw_only=True):
    object: str = "chat.completion"
    choices: Sequence[ChatChoice | Raw]
    prompt_logprobs: common.PromptLogprobs | Raw | None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    prompt_text: str | None = None
    kv_transfer_params: common.KVTransferParams | None = None
    ec_transfer_params: common.ECTransferParams | None = None
    metrics: common.PerRequestMetrics | None = None


class Delta(Struct):
    role: str | UnsetType = UNSET
    content: Content | None | UnsetType = UNSET
    reasoning: str | Raw | UnsetType = UNSET
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int | Raw
    delta: Delta
    logprobs: common.LogprobContent | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: Sequence[int] | None | UnsetType = UNSET
