"""Structs that several kinds of answers share: usage, transfers, log probabilities, chunk fields.

Keys are in vLLM's order; UNSET fields are omitted. Log probabilities are natural logarithms.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Encoder

encode = Encoder().encode
"""Encodes to compact JSON. Raises `UnicodeEncodeError` for a lone surrogate."""
EXAMPLE_CHAT = ({"role": "user", "content": "hi"},)
"""The shortest conversation, for examples of requests."""
GAP = b"\0"
"""Placeholder in a template. JSON never contains this byte: texts escape it."""
HOLE = Raw(GAP)
"""A field of a template that is filled in later."""

Blocks = Sequence[tuple[dict[str, object], str]]
"""Content blocks of a recorded reply, each with the text in it that a stream sends in pieces."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
ECTransferParams = Mapping[str, Mapping[str, str | int]]
"""`ec_transfer_params` of an encoder's answer: locations of encodings by item hash."""
PromptLogprobs = Sequence[Mapping[str, object] | None]
"""Candidates for each token of a prompt, by token id; None where unknown, as for the first token.
"""


def encode_to_keep(value: object, encode: Callable[[object], bytes] = encode) -> bytes:
    """Encodes as `encode`, for a cache that counts bytes.

    msgspec does not shrink its buffer: the bytes that it returns occupy up to 1.5 times their
    length.
    """
    return bytes(memoryview(encode(value)))


class PromptTokensDetails(Struct):
    """Details of the prompt's tokens in a usage."""

    schemas: ClassVar[Sequence[str]] = ("PromptTokenUsageInfo",)
    cached_tokens: int
    created_cache_tokens: int | None | UnsetType = UNSET
    multimodal_tokens: Mapping[str, int] | None | UnsetType = UNSET


class CompletionTokensDetails(Struct):
    """Details of the generated tokens in a usage."""

    reasoning_tokens: int


class Usage(Struct):
    """Token counts of an answer."""

    schemas: ClassVar[Sequence[str]] = ("UsageInfo",)
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | None | UnsetType = UNSET


def usage_of(prompt_tokens: int, completion_tokens: int, missing: None | UnsetType = None) -> Usage:
    """Returns the usage of these counts; `missing` stands for the details."""
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        prompt_tokens_details=missing,
        completion_tokens_details=missing,
    )


class UsageOverrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts of a script that replace the real ones in an answer's usage.

    None keeps the real count.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None

    def override(self, prompt_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Returns the numbers of prompt tokens and generated tokens to report."""
        if self.prompt_tokens is not None:
            prompt_tokens = self.prompt_tokens
        if self.completion_tokens is not None:
            completion_tokens = self.completion_tokens
        return prompt_tokens, completion_tokens


class ItemList(Struct, kw_only=True):
    """A list of vectors, scores or classes. `created` is Unix seconds."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: Sequence[Raw | Mapping[str, float | str]]
    usage: Usage


class KVTransferParams(Struct, kw_only=True):
    """`kv_transfer_params` of an answer: location of a prefill's KV cache, for the decoder."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: Sequence[Sequence[int]]
    """Block ids by group of layers; there is one group."""
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int
    remote_blocks_expiry_time: None = None
    transfer_mode: str = "pull"


TransferAddress = Callable[
    [Mapping[str, object], str, KVTransferParams | None], KVTransferParams | None
]
"""Gets `kv_transfer_params` of a request, its id in the engine, and NixlConnector's answer."""


class WholeAnswer(Struct, kw_only=True):
    """First fields of a whole answer. `created` is Unix seconds."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[Struct | Raw]
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage


class PerRequestMetrics(Struct):
    """`metrics` of an answer.

    Times are in milliseconds. `tokens_per_second` covers the time from scheduling to the end.
    """

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: None = None


class KnownMetrics(PerRequestMetrics, omit_defaults=True):
    """`metrics` of a chunk, which omits unknown times."""


class ChunkHead(Struct):
    """First fields of a chunk of a stream. `created` is Unix seconds."""

    id: str
    object: str
    created: int
    model: str


class WeightVersionSpan(Struct):
    """Tokens of a reply, from `start` up to `end`, that one version of the weights wrote."""

    version: str
    start: int
    end: int


WeightVersions = Sequence[WeightVersionSpan] | None | UnsetType


class ChunkTail(Struct):
    """Last fields of a chunk of a stream."""

    schemas: ClassVar[Sequence[str]] = (
        "ChatCompletionStreamResponse",
        "CompletionStreamResponse",
    )
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | None | UnsetType = UNSET
    prompt_text: str | None | UnsetType = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET
    kv_transfer_params: KVTransferParams | None | UnsetType = UNSET


class ChatAlternative(Struct, gc=False):
    """One of `top_logprobs`; `bytes` is the UTF-8 of `token`, as a list of numbers."""

    token: str
    logprob: float
    bytes: Raw


class ChatLogprob(Struct):
    """Log probability of one token of a chat; `bytes` is as in `ChatAlternative`."""

    token: str
    logprob: float
    bytes: Raw
    top_logprobs: Sequence[ChatAlternative]


class LogprobContent(Struct):
    """`logprobs` of a choice: one entry per generated token."""

    content: Sequence[Struct | Raw] | Raw


class CompletionLogprobs(Struct):
    """Log probabilities of a completion, as parallel lists with one item per token.

    `text_offset` counts characters; unknown values are null.
    """

    text_offset: Sequence[int] | Raw
    token_logprobs: Sequence[float | None] | Raw
    tokens: Sequence[str] | Raw
    top_logprobs: Sequence[dict[str, float] | None] | Raw
