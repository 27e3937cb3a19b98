"""Bodies and answers of the /derender routes, which convert the token ids of an answer to text.

Answers have their keys in vLLM's order; UNSET fields are omitted.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.core.protocol import chat, common, completions, options
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject, LaxFields, Path
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.decoding import RawRequest, Request
from app.core.server.http.errors import invalid_field, malformed
from app.extensions.scale_out.protocol import convert_natural_numbers

MAX_WINDOW_TOKENS = 1024
"""Most items of `prev_tokens`, as in vLLM."""


class Candidate(Struct, kw_only=True):
    """A token with its log probability; `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprobs(Candidate, kw_only=True):
    """The log probability of a generated token, and its alternatives."""

    top_logprobs: list[Candidate] = []


class Logprobs(Struct, kw_only=True):
    """Log probabilities of a choice, one entry per generated token."""

    content: list[TokenLogprobs] | None = None


class RenderedChoice(Struct, kw_only=True):
    """One choice of a generate answer."""

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[options.Natural] | None = None
    logprobs: Logprobs | None = None

    lax_fields: ClassVar[LaxFields] = {"token_ids": convert_natural_numbers}


class CountedTokens(Struct, kw_only=True):
    """Token counts of a generate answer."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class GenerateOutput(Struct, kw_only=True):
    """A whole answer of ``/inference/v1/generate`` with `output_mode` tokens."""

    request_id: str = ""
    choices: list[RenderedChoice]
    usage: CountedTokens | None = None
    prompt_logprobs: list[JsonObject | None] | None = None
    prompt_token_ids: list[options.Natural] | None = None
    metrics: JsonObject | None = None
    kv_transfer_params: JsonObject | None = None
    output_mode: Literal["tokens"] = "tokens"


class GenerateEvent(Struct, kw_only=True):
    """One event of a stream of ``/inference/v1/generate`` with `output_mode` tokens."""

    request_id: str = ""
    choices: list[RenderedChoice]
    usage: CountedTokens | None = None
    prompt_token_ids: list[options.Natural] | None = None
    metrics: JsonObject | None = None
    output_mode: Literal["tokens"] = "tokens"


class StreamState(Struct, kw_only=True):
    """State that a client carries from one event of a choice to the next. Fields are vLLM's.

    With a parser `output_token_ids` has all tokens. Without a parser it has only the last tokens,
    and `read_offset` counts the tokens whose text has been sent.
    """

    prev_tokens: Annotated[list[str], Meta(max_length=MAX_WINDOW_TOKENS)] = []
    prefix_offset: options.Natural = 0
    read_offset: options.Natural = 0
    role_sent: bool = False
    logprob_context_token_ids: Annotated[list[int], Meta(max_length=4)] = []
    logprob_text_offset: options.Natural = 0
    """Characters sent so far: the `text_offset` of the next log probability."""
    output_token_ids: list[options.Natural] = []
    output_chunk_lens: list[Annotated[int, Meta(gt=0)]] = []
    """Tokens of each event in `output_token_ids`."""
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []
    """Ids of the calls so far, in order."""

    def check(self, param: str) -> None:
        """Checks that the counts match.

        Raises:
            ApiError: Status 400 at `param`, the state's path in the body.
        """
        if sum(self.output_chunk_lens) != len(self.output_token_ids):
            raise malformed(
                f"{param}: the sum of output_chunk_lens must equal the number of output_token_ids",
                param,
            )
        if self.read_offset > len(self.output_token_ids):
            raise malformed(f"{param}: read_offset is beyond the end of output_token_ids", param)


class DerenderRequest(Request, kw_only=True):
    """Fields of all four bodies.

    A body with `stream` true has an event; all others have whole answers.
    """

    stream: bool = False
    model: str | None = None

    @classmethod
    def error_path(cls, values: JsonObject, path: Path) -> Path:
        """Returns the path that vLLM reports for a conversion error at `path` of the body."""
        return (cls.__name__, *path)

    @property
    def original(self) -> ChatCompletionRequest | CompletionRequest | None:
        """The request that was answered, if the body has it."""
        request: ChatCompletionRequest | CompletionRequest | None = None
        for name in ("chat_request", "completion_request"):
            request = request or getattr(self, name, None)
        return request

    @property
    def skips_special(self) -> bool:
        """Texts leave special tokens out."""
        return self.original is None or self.original.skip_special_tokens is not False

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema."""
        if self.original is not None:
            self.original.check_rules()


def check_is_whole(stream: object, param: str) -> None:
    """Checks that the field `stream` is missing or false, as a stream has a different body.

    Raises:
        ApiError: Status 400 at `param`.
    """
    if stream is not None and stream is not False:
        raise invalid_field("literal_error", param, "Input should be False")


class DerenderChatRequest(DerenderRequest, kw_only=True):
    """A whole answer to a chat."""

    generate_response: GenerateOutput
    prompt_tokens: int | None = None
    prompt_token_ids: list[options.Natural] | None = None
    chat_request: ChatCompletionRequest | None = None

    def check_rules(self: "DerenderChatRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        check_is_whole(self.stream, "body.DerenderChatRequest.stream")


class DerenderCompletionRequest(DerenderRequest, kw_only=True):
    """Whole answers to the prompts of a completion."""

    generate_responses: list[GenerateOutput]
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[options.Natural] | None] | None = None
    completion_request: CompletionRequest | None = None

    def check_rules(self: "DerenderCompletionRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        check_is_whole(self.stream, "body.stream")

    @classmethod
    def error_path(cls, values: JsonObject, path: Path) -> Path:
        """Returns the path that vLLM reports for a conversion error at `path` of the body."""
        return path

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema."""
        for name in ("prompt_tokens", "prompt_token_ids"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.generate_responses):
                raise malformed(
                    f"body: {name} must have as many items as generate_responses", "body"
                )
        super().check_converted()


class DerenderStreamRequest(DerenderRequest, kw_only=True):
    """An event of a stream, and the state that the previous event's answer returned."""

    generate_chunk: GenerateEvent
    stream_state: StreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[options.Natural] | None = None

    lax_fields: ClassVar[LaxFields] = {"prompt_token_ids": convert_natural_numbers}

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema."""
        if self.stream_state is not None:
            self.stream_state.check(f"body.{type(self).__name__}.stream_state")
        super().check_converted()


class DerenderChatStreamRequest(DerenderStreamRequest, kw_only=True):
    """An event of a chat."""

    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionStreamRequest(DerenderStreamRequest, kw_only=True):
    """An event of a completion."""

    completion_request: CompletionRequest | None = None


class StreamSwitch(Struct):
    """The field of a body that selects between whole answers and events."""

    stream: object = None


class ChatDelta(Struct):
    """Parts of a message that an event adds; missing parts are null, missing calls are omitted."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[chat.ToolCall] | UnsetType = UNSET


class ChatEventChoice(Struct, kw_only=True):
    """One choice of a derendered event of a chat."""

    schemas: ClassVar[Sequence[str]] = ("ChatCompletionResponseStreamChoice",)
    index: int
    delta: ChatDelta
    logprobs: common.LogprobContent | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: Sequence[int] | None = None
    weight_versions: common.WeightVersions = None


class EventHead(Struct, kw_only=True):
    """First fields of a derendered event. `created` is Unix seconds."""

    id: str
    object: str
    created: int
    model: str


class ChatEvent(EventHead, kw_only=True):
    """A derendered event of a chat."""

    schemas: ClassVar[Sequence[str]] = ("ChatCompletionStreamResponse",)
    object: str = "chat.completion.chunk"
    choices: Sequence[ChatEventChoice]
    usage: common.Usage | None
    system_fingerprint: None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_text: None = None
    metrics: JsonObject | None
    kv_transfer_params: None = None


class CompletionEvent(EventHead, kw_only=True):
    """A derendered event of a completion."""

    schemas: ClassVar[Sequence[str]] = ("CompletionStreamResponse",)
    object: str = "text_completion"
    choices: Sequence[completions.CompletionChunkChoice]
    usage: common.Usage | None
    system_fingerprint: None = None
    metrics: JsonObject | None
    kv_transfer_params: None = None


class DerenderedEvent(Struct):
    """An event as text, and the state for the next one."""

    chunk: ChatEvent | CompletionEvent
    stream_state: StreamState
