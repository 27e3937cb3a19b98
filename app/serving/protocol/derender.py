"""The bodies of both ``/derender`` routes, which convert a generate answer's token ids to text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from app.serving.http.errors import malformed
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject, Misfit, non_negative
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.decoding import Request
from app.serving.protocol.options import Natural

MOST_WINDOW_TOKENS = 1024
"""Most tokens in a client's decode window."""


class Candidate(Struct, kw_only=True):
    """One token and its log probability."""

    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprobs(Candidate, kw_only=True):
    """The sampled token at one place, with its candidates."""

    top_logprobs: list[Candidate] = []


class Logprobs(Struct, kw_only=True):
    """`logprobs` of a choice: one entry per token."""

    content: list[TokenLogprobs] | None = None


class Choice(Struct, kw_only=True):
    """One choice of a generate answer."""

    index: int
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[Natural] | None = None
    logprobs: Logprobs | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"token_ids": non_negative}


class StreamChoice(Choice, kw_only=True):
    """The part of a choice in one event of a generate stream."""

    finish_reason: str | None = None


class CountedTokens(Struct, kw_only=True):
    """The used fields of a generate answer's `usage`."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class GenerateAnswer(Struct, kw_only=True):
    """A whole answer of ``/inference/v1/generate`` with `output_mode` tokens."""

    request_id: str = ""
    choices: list[Choice]
    prompt_logprobs: list[JsonObject | None] | None = None
    prompt_token_ids: list[Natural] | None = None
    metrics: JsonObject | None = None
    kv_transfer_params: JsonObject | None = None
    output_mode: Literal["tokens"] = "tokens"


class GenerateEvent(Struct, kw_only=True):
    """One event of a generate stream with `output_mode` tokens."""

    request_id: str = ""
    choices: list[StreamChoice]
    usage: CountedTokens | None = None
    prompt_token_ids: list[Natural] | None = None
    metrics: JsonObject | None = None
    output_mode: Literal["tokens"] = "tokens"


class StreamState(Struct, kw_only=True):
    """A stream's state, which the client sends with each event: the server stores none."""

    prev_tokens: list[str] = []
    """Last tokens of the text in the vocabulary's spelling; used without a parser."""
    prefix_offset: Natural = 0
    read_offset: Natural = 0
    role_sent: bool = False
    logprob_context_token_ids: Annotated[list[int], Meta(max_length=4)] = []
    logprob_text_offset: Natural = 0
    output_token_ids: list[int] = []
    """All tokens so far; used with a parser, which reads all tokens again."""
    output_chunk_lens: list[Annotated[int, Meta(ge=1)]] = []
    """Number of `output_token_ids` in each event."""
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []


def check_state(state: StreamState | None) -> None:
    """Raises ApiError 400 for a state that no earlier answer can have contained."""
    if state is None:
        return
    if len(state.prev_tokens) > MOST_WINDOW_TOKENS:
        where = "body.stream_state.prev_tokens"
        raise malformed(f"{where}: at most {MOST_WINDOW_TOKENS} tokens", where)
    if sum(state.output_chunk_lens) != len(state.output_token_ids):
        where = "body.stream_state"
        raise malformed(f"{where}: output_chunk_lens do not sum up to the output_token_ids", where)


def is_whole(value: object) -> bool:
    if value is not False:
        raise Misfit("false")
    return False


def is_event(value: object) -> bool:
    if value is not True:
        raise Misfit("true")
    return True


class DerenderRequest(Request, kw_only=True):
    """Common fields of bodies with whole answers."""

    stream: bool = False
    model: str | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"stream": is_whole}


class DerenderChatRequest(DerenderRequest, kw_only=True):
    """``POST /v1/chat/completions/derender`` of a whole answer."""

    generate_response: GenerateAnswer
    prompt_tokens: int | None = None
    prompt_token_ids: list[Natural] | None = None
    chat_request: ChatCompletionRequest | None = None

    @classmethod
    def place(cls, values: JsonObject, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        return (cls.__name__, *path)

    def check_converted(self) -> None:
        if self.chat_request is not None:
            self.chat_request.check_rules()


class DerenderCompletionRequest(DerenderRequest, kw_only=True):
    """``POST /v1/completions/derender`` of one whole answer per prompt."""

    generate_responses: list[GenerateAnswer]
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[Natural] | None] | None = None
    completion_request: CompletionRequest | None = None

    def check_converted(self) -> None:
        for name in ("prompt_tokens", "prompt_token_ids"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.generate_responses):
                raise malformed(f"body: {name} must be as many as generate_responses", "body")
        if self.completion_request is not None:
            self.completion_request.check_rules()


class DerenderStreamRequest(Request, kw_only=True):
    """The body of both ``/derender`` routes with one event of a stream."""

    stream: bool
    model: str | None = None
    generate_chunk: GenerateEvent
    stream_state: StreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[Natural] | None = None
    chat_request: ChatCompletionRequest | None = None
    completion_request: CompletionRequest | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"stream": is_event}

    def check_converted(self) -> None:
        check_state(self.stream_state)
        for nested in (self.chat_request, self.completion_request):
            if nested is not None:
                nested.check_rules()
