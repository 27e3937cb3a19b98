"""Structs shared by answers of several families: usage, transfers, log probabilities, heads of
chunks.

Keys are in vLLM's order; UNSET fields are omitted. Log probabilities are natural logarithms.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Encoder

encode = Encoder().encode
"""Encodes to compact JSON. UnicodeEncodeError for a lone surrogate."""
EXAMPLE_CHAT = ({"role": "user", "content": "hi"},)
"""The shortest conversation, for examples of requests."""
GAP = b"\0"
"""Placeholder in a template. JSON never contains this byte: texts escape it."""
HOLE = Raw(GAP)


def encode_to_keep(value: object) -> bytes:
    """Encodes as `encode`, for a cache that counts bytes.

    msgspec does not shrink its buffer: its own bytes occupy up to half as much again as their
    length.
    """
    return bytes(memoryview(encode(value)))


def template(value: Struct) -> list[bytes]:
    return encode(value).split(GAP)


class PromptTokensDetails(Struct):
    cached_tokens: int
    created_cache_tokens: int | None | UnsetType = UNSET
    multimodal_tokens: Mapping[str, int] | None | UnsetType = UNSET


class CompletionTokensDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | None | UnsetType = UNSET


Count = Annotated[int, Meta(ge=0, le=2**53)]


class UsageOverrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts that replace the real ones in an answer's usage, as scripts do; None:

    the real count.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None

    def told(self, prompt_tokens: int, tokens: int) -> tuple[int, int]:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return (
            prompt_tokens if prompt is None else prompt,
            tokens if completion is None else completion,
        )


class ItemList(Struct, kw_only=True):
    """A list of vectors, scores or classes. `created` is Unix seconds."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: Sequence[Raw | Mapping[str, float | str]]
    usage: Usage


class KVTransferParams(Struct, kw_only=True):
    """`kv_transfer_params` of an answer:

    location of a prefill's KV cache, for the decoding server.
    """

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


ECTransferParams = Mapping[str, Mapping[str, str | int]]
"""`ec_transfer_params` of an encoder's answer: locations of encodings by item hash."""


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


Figure = float | None | UnsetType


class PerRequestMetrics(Struct):
    """`metrics` of an answer:

    times in milliseconds; tokens per second from scheduling to the end.
    """

    time_to_first_token_ms: Figure = None
    generation_time_ms: Figure = None
    queue_time_ms: Figure = None
    mean_itl_ms: Figure = None
    tokens_per_second: Figure = None
    speculative_decoding: None | UnsetType = None


class ChunkHead(Struct):
    id: str
    object: str
    created: int
    model: str


class ChunkTail(Struct):
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | None | UnsetType = UNSET
    prompt_text: str | None | UnsetType = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET


class ChatAlternative(Struct, gc=False):
    """One of `top_logprobs`; `bytes` is the UTF-8 of `token`, as a list of numbers."""

    token: str
    logprob: float
    bytes: Raw


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: Raw
    top_logprobs: Sequence[ChatAlternative]


class TokenCandidate(Struct, gc=False):
    """One of `top_logprobs` in a generate answer, with a token id; `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int


class TokenIdLogprob(Struct):
    token_id: int
    logprob: float
    rank: int
    top_logprobs: Sequence[TokenCandidate]


class LogprobContent(Struct):
    content: Sequence[Struct] | Raw


class CompletionLogprobs(Struct):
    """Parallel lists, one place per token.

    `text_offset` counts characters; unknown values are null.
    """

    text_offset: Sequence[int] | Raw
    token_logprobs: Sequence[float | None] | Raw
    tokens: Sequence[str] | Raw
    top_logprobs: Sequence[dict[str, float] | None] | Raw


PromptLogprobs = Sequence[Mapping[str, object] | None]
"""Candidates for each token of a prompt, by token id; None where unknown, as for the first token.
"""
