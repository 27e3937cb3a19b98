"""The fields that chats and text completions share."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from app.protocol.coercion import JsonObject
from app.protocol.decoding import Request
from app.protocol.options import (
    CacheSalt,
    ExtraArg,
    Int64,
    Natural,
    RepetitionDetection,
    ResponseFormat,
    Share,
    StopStrings,
    StreamOptions,
    StructuredOutputs,
    Truncation,
)

FLAT_TRANSFER = (
    *("do_remote_decode", "do_remote_prefill", "remote_block_ids", "remote_engine_id"),
    *("remote_host", "remote_port"),
)
"""Fields of `kv_transfer_params` that llm-d's simulator took without the object, up to version 0.5."""


class GenerationFields(Request, kw_only=True):
    """What a request for generation may have in either family. None is the server's default.

    The first six are not vLLM's: they stand for fields of `kv_transfer_params`, and may have any type.
    """

    do_remote_decode: object = None
    do_remote_prefill: object = None
    remote_block_ids: object = None
    remote_engine_id: object = None
    remote_host: object = None
    remote_port: object = None

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    response_format: ResponseFormat | None = None
    seed: Int64 | None = None
    stop: StopStrings = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    thinking_token_budget: int | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str = ""
    """Empty when the client gave none: vLLM draws a random one."""
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: Natural = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    cache_hit_threshold: Share | None = None
    """Not vLLM's: with a smaller share of the prompt cached the reply is empty."""
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, ExtraArg] | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if self.do_remote_decode is not None or self.do_remote_prefill is not None:
            flat = {name: value for name in FLAT_TRANSFER if (value := getattr(self, name)) is not None}
            self.kv_transfer_params = flat | (self.kv_transfer_params or {})
