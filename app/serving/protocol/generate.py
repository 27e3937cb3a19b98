"""The token-in token-out routes: their bodies and answers (vllm-api.md section 2,
`--enable-scale-out`).

Answers have their keys in vLLM's order; UNSET fields are omitted. `Raw` is encoded JSON; long JSON
is encoded in parts.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from app.serving.http.errors import bad_request, malformed
from app.serving.protocol import common, options, rules
from app.serving.protocol.coercion import (
    ConversionError,
    JsonObject,
    convert,
    convert_natural_numbers,
)
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.decoding import RawRequest, Request

Ids = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
Offsets = Annotated[list[int], Meta(min_length=2, max_length=2)]
OF_COMPLETION = frozenset(CompletionRequest.__struct_fields__)


class SamplingParams(Struct, kw_only=True):
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
    repetition_detection: options.RepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None


def convert_sampling_params(value: object) -> SamplingParams:
    """Converts `value`; vLLM tries two forms, and reports any misfit at the field itself."""
    try:
        return convert(SamplingParams, value)
    except ConversionError as error:
        raise ConversionError(error.expected) from None


def convert_token_ids(value: object) -> object:
    ids = convert_natural_numbers(value)
    if not ids:
        raise ConversionError("a list that is not empty")
    return ids


class ReasoningParserKwargs(Struct, forbid_unknown_fields=True):
    chat_template_kwargs: JsonObject = {}


class PlaceholderRange(Struct):
    offset: options.Natural
    length: Annotated[int, Meta(gt=0)]


class MediaFeatures(Struct, kw_only=True):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None

    def check(self, tokens: int) -> None:
        """Raises ApiError 400 for lists that do not match, or placeholders beyond a prompt of
        `tokens`.
        """
        lengths = {name: len(hashes) for name, hashes in self.mm_hashes.items()}
        for other in (self.mm_placeholders, self.kwargs_data, self.mm_metadata):
            if other is not None and {name: len(items) for name, items in other.items()} != lengths:
                raise malformed(
                    "body.features: all lists need the same modalities and lengths", "body.features"
                )
        spans = sorted(
            (each.offset, each.offset + each.length)
            for many in self.mm_placeholders.values()
            for each in many
        )
        if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
            raise malformed("body.features: mm_placeholders overlap", "body.features")
        if any(end > tokens for _, end in spans):
            raise malformed("body: mm_placeholders lie beyond token_ids", "body")


class GenerateRequest(Request, kw_only=True):
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
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: options.StreamOptions | None = None
    cache_salt: options.CacheSalt | None = None
    priority: options.Int64 = 0
    ignore_eos: bool = False
    """Not in vLLM; the same as the sampling parameter."""
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None

    lax_fields: ClassVar[Mapping[str, Hashable]] = {
        "token_ids": convert_token_ids,
        "sampling_params": convert_sampling_params,
    }

    def check_rules(self: "GenerateRequest | RawRequest") -> None:
        rules.check_cache_salt(self.cache_salt)

    def check_converted(self) -> None:
        if self.features is not None:
            self.features.check(len(self.token_ids))
        if self.content_parts and self.features:
            raise malformed("body: content_parts and features exclude each other", "body")
        if self.output_mode == "text" and not self.sampling_params.detokenize:
            raise malformed("body: output_mode text needs sampling_params.detokenize", "body")
        if self.stream and self.sampling_params.prompt_logprob_token_ids is not None:
            raise bad_request("prompt_logprob_token_ids do not go with stream=true")
        at = self.sampling_params
        if at.stop and not at.detokenize:
            raise bad_request("stop needs detokenize")
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(at, name) or 0) < -1:
                raise bad_request(f"{name} must be 0 or more, or -1", name)
        if at.stream_interval is not None and at.stream_interval < 1:
            raise bad_request("stream_interval must be at least 1", "stream_interval")
        rules.check_thinking_budget(at.thinking_token_budget)

    @property
    def mm_hashes(self) -> dict[str, list[str]] | None:
        return self.features.mm_hashes if self.features else None

    def as_completion(self, max_model_len: int) -> CompletionRequest:
        """Converts to a text completion of the same tokens; `max_tokens` is limited to the context."""
        at, room = self.sampling_params, max_model_len - len(self.token_ids)
        most = min(at.max_tokens, room) if isinstance(at.max_tokens, int) else room
        transfer = self.kv_transfer_params or (at.extra_args or {}).get("kv_transfer_params")
        parts = ((part, name) for part in (self, at) for name in part.__struct_fields__)
        same = {name: getattr(part, name) for part, name in parts if name in OF_COMPLETION}
        own: JsonObject = {
            "prompt": list(self.token_ids),
            "max_tokens": most,
            "ignore_eos": at.ignore_eos or self.ignore_eos,
            "bad_words": at.bad_words or [],
            "kv_transfer_params": transfer if isinstance(transfer, dict) else None,
        }
        return CompletionRequest(**same | own)


class AbortRequest(Request, kw_only=True):
    """The body of ``POST /abort_requests``, where no ids mean all, and of its route below
    `/inference`.
    """

    request_ids: list[str] | None = None


class WeightVersion(Struct):
    """Version of the weights that made the tokens from number `start` up to `end`."""

    version: str
    start: int
    end: int


class GenerateChoice(Struct):
    index: int
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: Sequence[WeightVersion] | None = None
    text: str | Raw | UnsetType = UNSET
    logprobs: common.LogprobContent | None = None


class GenerateResponse(Struct, kw_only=True):
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
    request_id: str
    usage: common.Usage | None
    prompt_token_ids: Sequence[int] | UnsetType
    output_mode: str
    choices: Sequence[GenerateChoice]
