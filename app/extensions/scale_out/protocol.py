"""The token-in token-out routes of `--enable-scale-out`: their bodies and answers.

Answers have their keys in vLLM's order; UNSET fields are omitted. `Raw` is encoded JSON; long JSON
is encoded in parts.
"""

from collections.abc import Mapping, Sequence, Sized
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from app.core.protocol import common, options, rules
from app.core.protocol.chat import ChatMessage
from app.core.protocol.coercion import ConversionError, JsonObject, LaxFields
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.convert import convert, convert_value
from app.core.protocol.decoding import RawRequest, Request
from app.core.server.http.errors import bad_request, malformed

Ids = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
Offsets = Annotated[list[int], Meta(min_length=2, max_length=2)]
COMPLETION_FIELDS = frozenset(CompletionRequest.__struct_fields__)


class SamplingParams(Struct, kw_only=True):
    """vLLM's sampling parameters of a request for generation from token ids."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None | UnsetType = UNSET
    """UNSET and null allow as many tokens as fit the context."""
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[list[int]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: int = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: options.StructuredOutputs | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: JsonObject | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: options.CheckedRepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None

    def check(self) -> None:
        """Raises `ApiError` for invalid parameters."""
        if self.stop and not self.detokenize:
            raise bad_request("stop requires detokenize to be true")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) < -1:
                raise bad_request(f"{name} must be -1 or greater", name)
        if self.stream_interval is not None and self.stream_interval < 1:
            raise bad_request("stream_interval must be at least 1", "stream_interval")
        rules.check_thinking_budget(self.thinking_token_budget)


def convert_sampling_params(value: object) -> SamplingParams:
    """Converts `value`; vLLM tries two forms, and reports any error at the field itself."""
    try:
        return convert(SamplingParams, value)
    except ConversionError as error:
        raise error.moved() from None


def convert_natural_numbers(value: object) -> object:
    """Converts token ids, or None.

    Raises:
        ConversionError: An item is not an integer or is negative. The path of a negative number is
            the whole list.
    """
    numbers = convert_value(list[int] | None, value)
    if isinstance(numbers, list) and numbers and min(numbers) < 0:
        raise ConversionError("non-negative numbers", kind="greater_than_equal")
    return numbers


def convert_token_ids(value: object) -> object:
    """Converts a list of at least one token id, or raises `ConversionError`."""
    token_ids = convert_natural_numbers(value)
    if not token_ids:
        raise ConversionError("a non-empty list", kind="too_short")
    return token_ids


class ParseContext(Struct, kw_only=True):
    """A chat without its messages; `history_tool_call_cnt` counts the calls in them."""

    tools: list[options.Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | options.NamedToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: JsonObject = {}
    history_tool_call_cnt: options.Natural = 0


def check_parse_context(value: object) -> object:
    """Raises `ConversionError` for a context with wrong values, and returns a correct one."""
    if value is not None:
        convert(ParseContext, value)
    return value


class ReasoningParserKwargs(Struct, forbid_unknown_fields=True):
    """Options for the parser of reasoning."""

    chat_template_kwargs: JsonObject = {}


class PlaceholderRange(Struct):
    """The placeholder tokens of a media item in the prompt."""

    offset: options.Natural
    length: Annotated[int, Meta(gt=0)]


class MediaFeatures(Struct, kw_only=True):
    """Media items of a prompt, as lists by modality."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None

    def check(self, prompt_tokens: int) -> None:
        """Checks the lists against each other and against a prompt of `prompt_tokens`.

        Raises:
            ApiError: Status 400 for lists that do not match, or placeholders beyond the prompt.
        """
        lengths = _lengths(self.mm_hashes)
        for lists in (self.mm_placeholders, self.kwargs_data, self.mm_metadata):
            if lists is not None and _lengths(lists) != lengths:
                raise malformed(
                    "body.features: all lists must have the same modalities and lengths",
                    "body.features",
                )
        spans: list[tuple[int, int]] = []
        for placeholders in self.mm_placeholders.values():
            for placeholder in placeholders:
                spans.append((placeholder.offset, placeholder.offset + placeholder.length))
        spans.sort()
        if any(end > next_start for (_, end), (next_start, _) in pairwise(spans)):
            raise malformed("body.features: mm_placeholders overlap", "body.features")
        if any(end > prompt_tokens for _, end in spans):
            raise malformed("body: mm_placeholders extend beyond the end of token_ids", "body")


def _lengths(lists: Mapping[str, Sized]) -> dict[str, int]:
    return {modality: len(items) for modality, items in lists.items()}


class GenerateRequest(Request, kw_only=True):
    """The body of ``POST /inference/v1/generate``."""

    request_id: str = ""
    token_ids: Ids
    token_offsets: list[Offsets] | None = None
    features: MediaFeatures | None = None
    content_parts: list[JsonObject] | None = None
    sampling_params: SamplingParams
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: JsonObject | None = None
    """Fields of a `ParseContext`; the output mode derender refuses other fields."""
    stream: bool | None = False
    stream_options: options.StreamOptions | None = None
    cache_salt: options.CacheSalt | None = None
    priority: options.Int64 = 0
    ignore_eos: bool = False
    """Not in vLLM; has the same effect as the sampling parameter."""
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None

    nested_parameters: ClassVar[str | None] = "sampling_params"
    lax_fields: ClassVar[LaxFields] = {
        "token_ids": convert_token_ids,
        "sampling_params": convert_sampling_params,
        "parse_context": check_parse_context,
    }

    def check_rules(self: "GenerateRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema."""
        rules.check_cache_salt(self.cache_salt)

    def check_converted(self) -> None:
        """Applies vLLM's rules that come after the schema."""
        if self.features is not None:
            self.features.check(len(self.token_ids))
        if self.content_parts and self.features:
            raise malformed("body: content_parts and features cannot be combined", "body")
        if self.output_mode != "tokens" and not self.sampling_params.detokenize:
            raise malformed(
                f"body: output_mode {self.output_mode} requires sampling_params.detokenize", "body"
            )
        context_fields = (self.parse_context or {}).keys()
        unknown_fields = sorted(context_fields - set(ParseContext.__struct_fields__))
        if unknown_fields and self.output_mode == "derender":
            raise malformed(
                f"body: Unknown parse_context fields {unknown_fields}; this server is older than "
                "the server that rendered the request.",
                "body",
            )
        if self.stream and self.sampling_params.prompt_logprob_token_ids is not None:
            raise bad_request("prompt_logprob_token_ids cannot be used with stream=true")
        self.sampling_params.check()

    @property
    def mm_hashes(self) -> dict[str, list[str]] | None:
        """Hashes of the media items by modality."""
        return self.features.mm_hashes if self.features else None

    def as_completion(self, room: int) -> CompletionRequest:
        """Converts to a completion of the same tokens, of at most `room` tokens."""
        params = self.sampling_params
        max_tokens = room
        if isinstance(params.max_tokens, int):
            max_tokens = min(params.max_tokens, max_tokens)
        transfer = self.kv_transfer_params or (params.extra_args or {}).get("kv_transfer_params")
        fields: dict[str, Any] = {}
        for source in (self, params):
            for name in COMPLETION_FIELDS.intersection(source.__struct_fields__):
                fields[name] = getattr(source, name)
        fields["prompt"] = list(self.token_ids)
        fields["max_tokens"] = max_tokens
        fields["ignore_eos"] = params.ignore_eos or self.ignore_eos
        if self.output_mode == "derender" and params.logprobs is None and params.logprob_token_ids:
            fields["logprobs"] = len(params.logprob_token_ids)
        fields["bad_words"] = params.bad_words or []
        fields["kv_transfer_params"] = transfer if isinstance(transfer, dict) else None
        return CompletionRequest(**fields)


class TokensOrTextRequest(GenerateRequest, kw_only=True):
    """The same body for versions without the output mode derender."""

    schemas: ClassVar[Sequence[str]] = ("GenerateRequest",)
    output_mode: Literal["tokens", "text"] = "tokens"


class AbortRequest(Request, kw_only=True):
    """The body of ``POST /abort_requests``, and of its route below `/inference`.

    A missing list aborts all requests.
    """

    request_ids: list[str] | None = None


class TokenCandidate(Struct, gc=False):
    """One of `top_logprobs`; `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int


class TokenIdLogprob(Struct):
    """Log probability of one token."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: Sequence[TokenCandidate]


class GenerateChoice(Struct):
    """One choice of an answer."""

    index: int
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: common.WeightVersions = None
    text: str | Raw | UnsetType = UNSET
    message: ChatMessage | UnsetType = UNSET
    logprobs: common.LogprobContent | None = None


class GenerateResponse(Struct, kw_only=True):
    """A whole answer. `created` is Unix seconds."""

    request_id: str
    model: str
    created: int
    usage: common.Usage
    prompt_logprobs: common.PromptLogprobs | Raw | None = None
    prompt_token_id_logprobs: None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    mm_placeholders: None = None
    metrics: None = None
    kv_transfer_params: common.KVTransferParams | None = None
    ec_transfer_params: common.ECTransferParams | None = None
    output_mode: str
    choices: Sequence[GenerateChoice | Raw]


class GenerateChunk(Struct):
    """One event of a stream."""

    request_id: str
    usage: common.Usage | None
    prompt_token_ids: Sequence[int] | UnsetType
    output_mode: str
    choices: Sequence[GenerateChoice]
