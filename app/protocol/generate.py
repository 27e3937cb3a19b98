"""The token-in token-out routes: their bodies and answers (vllm-api.md section 2, `--enable-scale-out`).

Answers have their keys in vLLM's order, and UNSET is left out; `Raw` is JSON that is written by itself, for
instance in slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from app.clock.pause import Slices
from app.http.errors import bad_request
from app.protocol.coercion import JsonObject
from app.protocol.common import ECTransferParams, KVTransferParams, Usage
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import RawRequest, Request
from app.protocol.logprobs import LogprobContent, PromptLogprobs
from app.protocol.options import CacheSalt, Int64, StopStrings, StreamOptions, StructuredOutputs
from app.protocol.validation import rules

Ids = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class SamplingParams(Struct, kw_only=True):
    """The sampling parameters that matter to a simulation; others are accepted."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: StopStrings = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None | UnsetType = UNSET
    """What is left out is what fits; null is that, too."""
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    extra_args: JsonObject | None = None


class GenerateRequest(Request, kw_only=True):
    """The body of ``POST /inference/v1/generate``."""

    request_id: str = ""
    token_ids: Ids
    features: JsonObject | None = None
    """What a render has told of images and the like."""
    sampling_params: SamplingParams
    model: str | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt | None = None
    priority: Int64 = 0
    ignore_eos: bool = False
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None

    def check_rules(self: GenerateRequest | RawRequest, within: Slices) -> None:
        rules.check_stream_options(self.stream_options, self.stream)
        rules.check_cache_salt(self.cache_salt)

    @property
    def mm_hashes(self) -> dict[str, list[str]] | None:
        """Hashes of images and the like, by modality; what is none is left out."""
        hashes = (self.features or {}).get("mm_hashes")
        return hashes if isinstance(hashes, dict) else None

    def as_completion(self, max_model_len: int) -> CompletionRequest:
        """The same, as a text completion of the same tokens."""
        at = self.sampling_params
        most = at.max_tokens if isinstance(at.max_tokens, int) else max_model_len - len(self.token_ids)
        transfer = self.kv_transfer_params or (at.extra_args or {}).get("kv_transfer_params")
        if most < 1:
            raise bad_request(f"max_tokens must be at least 1, got {most}", "max_tokens")
        return CompletionRequest(
            model=self.model,
            prompt=list(self.token_ids),
            max_tokens=most,
            n=at.n,
            presence_penalty=at.presence_penalty,
            frequency_penalty=at.frequency_penalty,
            repetition_penalty=at.repetition_penalty,
            temperature=at.temperature,
            top_p=at.top_p,
            top_k=at.top_k,
            min_p=at.min_p,
            seed=at.seed,
            stop=at.stop,
            stop_token_ids=at.stop_token_ids,
            include_stop_str_in_output=at.include_stop_str_in_output,
            ignore_eos=at.ignore_eos or self.ignore_eos,
            min_tokens=at.min_tokens,
            logprobs=at.logprobs,
            prompt_logprobs=at.prompt_logprobs,
            logit_bias=at.logit_bias,
            allowed_token_ids=at.allowed_token_ids,
            bad_words=at.bad_words or [],
            structured_outputs=at.structured_outputs,
            stream=self.stream,
            stream_options=self.stream_options,
            return_token_ids=self.return_token_ids,
            cache_salt=self.cache_salt,
            priority=self.priority,
            request_id=self.request_id,
            kv_transfer_params=transfer if isinstance(transfer, dict) else None,
            ec_transfer_params=self.ec_transfer_params,
        )


class AbortRequest(Request, kw_only=True):
    """The body of ``POST /abort_requests``; without ids it means all."""

    request_ids: list[str] | None = None


class WeightVersion(Struct):
    """Which weights made the tokens from number `start` up to `end`."""

    version: str
    start: int
    end: int


class GenerateChoice(Struct):
    """One choice: of a whole answer, or what a chunk adds to it."""

    index: int
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: Sequence[WeightVersion] | None = None
    text: str | Raw | UnsetType = UNSET
    logprobs: LogprobContent | None = None


class GenerateResponse(Struct, kw_only=True):
    """A whole answer. `created` is Unix seconds."""

    request_id: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: PromptLogprobs | Raw | None = None
    prompt_token_id_logprobs: None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    mm_placeholders: None = None
    metrics: None = None
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    output_mode: str
    choices: Sequence[GenerateChoice] | Raw


class GenerateChunk(Struct, kw_only=True):
    """One event of a stream."""

    request_id: str
    usage: Usage | None
    prompt_token_ids: Sequence[int] | None | UnsetType = UNSET
    mm_placeholders: None | UnsetType = UNSET
    metrics: None | UnsetType = UNSET
    output_mode: str
    choices: Sequence[GenerateChoice]
