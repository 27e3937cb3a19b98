"""``POST /v1/chat/completions/batch``: the body."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from app.core.protocol import rules
from app.core.protocol.chat import (
    ChatCompletionRequest,
    Message,
    check_tool_calls,
    convert_messages,
    normalize_messages,
)
from app.core.protocol.coercion import ConversionError, LaxFields
from app.core.protocol.completions import MAX_PROMPTS
from app.core.protocol.decoding import RawRequest
from app.core.protocol.rules import get_field
from app.core.server.http.errors import bad_request

Conversations = list[list[Message]]
FIELDS_CHECKED_LATE_IN_BATCH = frozenset(
    (
        "response_format",
        "tools",
        "stream",
        "stream_options",
        "reasoning_effort",
        "parallel_tool_calls",
        "min_tokens",
        "stop_token_ids",
        "ignore_eos",
        "allowed_token_ids",
        "bad_words",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "truncation_side",
        "documents",
        "vllm_xargs",
        "kv_transfer_params",
        "ec_transfer_params",
        "repetition_detection",
        "stream_interval",
        "skip_special_tokens",
        "add_special_tokens",
        "return_prompt_text",
        "session_id",
        "mm_payload",
        "return_mm_kwargs",
    )
)


def convert_conversations(value: object) -> Conversations:
    """Returns the client's conversations unchanged.

    Raises:
        ConversionError: There is no conversation, or one is empty or has a message of no kind.
    """
    if not isinstance(value, list) or not value:
        raise ConversionError("a list of conversations", kind="list_type")
    for index, conversation in enumerate(value):
        try:
            if not convert_messages(conversation):
                raise ConversionError("a list that contains at least one message", kind="too_short")
        except ConversionError as error:
            raise error.prefixed(index) from None
    return value


class BatchChatRequest(ChatCompletionRequest, kw_only=True):
    """Several conversations, each with one choice.

    vLLM checks the fields in `FIELDS_CHECKED_LATE_IN_BATCH` when it generates.
    """

    messages: Conversations  # type: ignore[assignment]
    tool_choice: Literal["none"] | None = "none"
    best_of: int | None = None
    early_stopping: bool = False
    guided_decoding_backend: str | None = None

    lax_fields: ClassVar[LaxFields] = {"messages": convert_conversations}

    def check_rules(self: "BatchChatRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema, and limits the conversations."""
        if isinstance(self.messages, list) and len(self.messages) > MAX_PROMPTS:
            raise bad_request(
                f"a request can have at most {MAX_PROMPTS} conversations, got {len(self.messages)}",
                "messages",
            )
        if self.use_beam_search:
            raise bad_request(
                "Batch chat completions do not support beam search. "
                "Please set `use_beam_search` to False.",
                "use_beam_search",
            )
        rules.check_chat_logprobs(self)
        if get_field(self.kv_transfer_params, "prompt_token_ids") is not None:
            param = "kv_transfer_params.prompt_token_ids"
            raise bad_request(
                "A single prompt of token IDs cannot be used for several conversations.", param
            )
        if self.n not in (None, 1):
            raise bad_request("In a batch, n must be 1.", "n")
        rules.check_tools(self.tools, "none")
        rules.check_stream_options(self.stream_options, self.stream)
        for conversation in self.messages if isinstance(self.messages, list) else ():
            normalize_messages(conversation)
        rules.check_continuation(self.continue_final_message, self.add_generation_prompt)
        rules.check_shared_fields(self)

    def conversations(self) -> Sequence[list[Message]]:
        """Returns the conversations, one for each prompt."""
        return self.messages

    def check_converted(self) -> None:
        """Checks the tool calls of assistants."""
        self.tools = None
        self.stream = False
        for conversation in self.messages:
            for message in conversation:
                check_tool_calls(message)
