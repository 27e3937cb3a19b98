"""Differences between versions of vLLM, for clients.

A difference is a member of `Feature`. Other code asks if the simulated version has a feature, as in
`simulated_version(settings.api).has(Feature.WEIGHT_VERSIONS)`, and never compares version numbers.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct


class Difference(NamedTuple):
    """A feature, as clients see it."""

    since: str
    """Name of the first version with the feature."""
    area: str
    old_behavior: str
    """Behavior of versions without the feature."""
    new_behavior: str
    request_fields: tuple[str, ...] = ()
    """Fields of requests that come with the feature; other versions ignore them."""
    nullable_fields: tuple[str, ...] = ()
    """Fields of requests whose null stands for the default; other versions reject it."""


class Feature(Difference, Enum):
    """Differences between the supported versions, by area."""

    WEIGHT_VERSIONS = Difference(
        since="0.33",
        area="Chat and completions",
        old_behavior="Responses do not contain the versions of the weights.",
        new_behavior="Requests have `return_weight_versions`. Choices have `weight_versions`, null "
        "by default. In a streamed chat, only the last chunk of a choice has this field; in a "
        "streamed completion, all chunks do.",
        request_fields=("return_weight_versions",),
    )
    CHUNK_TRANSFER_PARAMS = Difference(
        since="0.33",
        area="Chat and completions",
        old_behavior="Chunks of streams have no `kv_transfer_params`.",
        new_behavior="Chunks of streams end with `kv_transfer_params`; the role chunk of a chat "
        "does not.",
    )
    REFUSAL_IN_PAUSE = Difference(
        since="0.33",
        area="Development",
        old_behavior="Requests that arrive during a pause wait.",
        new_behavior="Requests that arrive during a pause in `abort` or `wait` mode fail with 503. "
        "Streams fail with one event after their 200. In `keep` mode, requests wait.",
    )
    DEFAULT_SPECIAL_TOKENS = Difference(
        since="0.33",
        area="Chat, completions and responses",
        old_behavior="A null for `skip_special_tokens` is an error.",
        new_behavior="A null for `skip_special_tokens` means the default.",
        nullable_fields=("skip_special_tokens",),
    )
    BEAM_TOKEN_IDS_ERROR = Difference(
        since="0.33",
        area="Chat and completions",
        old_behavior="A beam search ignores `allowed_token_ids`.",
        new_behavior="A beam search with `allowed_token_ids` is an error.",
    )
    RESERVED_REPLY_TOKEN = Difference(
        since="0.33",
        area="Chat and completions",
        old_behavior="A chat with `truncate_prompt_tokens: -1` and without a token limit fills the "
        "whole context with the prompt, which is an error.",
        new_behavior="One token of the context is reserved for the reply.",
    )
    RESPONSE_CACHE_FIELDS = Difference(
        since="0.33",
        area="Responses",
        old_behavior="`prompt_cache_options`, `prompt_cache_retention`, `safety_identifier`, and "
        "`spaces_between_special_tokens` are ignored.",
        new_behavior="These fields are validated. Responses repeat the first three fields and "
        "`prompt_cache_key`. The retention `in-memory` becomes `in_memory`.",
    )
    INCOMPLETE_ITEMS = Difference(
        since="0.33",
        area="Responses",
        old_behavior="The last item of a response that reaches its token limit has the "
        "`completed` status. The stream ends with `response.completed`.",
        new_behavior="The last item has the `incomplete` status. The stream of an incomplete "
        "response ends with `response.incomplete`.",
    )
    ANTHROPIC_ERROR_TYPES = Difference(
        since="0.33",
        area="Messages",
        old_behavior="Errors have vLLM's types, such as `BadRequestError`.",
        new_behavior="Errors have Anthropic's types, such as `invalid_request_error`. "
        "In a stream, the error event follows the end of the open block.",
    )
    PREFILL_INTERVAL = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior="`--prefill-schedule-interval` has no effect on a single engine.",
        new_behavior="`--prefill-schedule-interval N` leaves N - 1 steps without prompts between "
        "two with prompts while other requests are generating and none are waiting.",
    )
    SELF_PREEMPTION = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior="With priority scheduling, a step ends at a request that preempts itself.",
        new_behavior="Requests after it still receive their tokens.",
    )
    LAST_ADAPTERS = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior="A request whose last token is in progress does not count for `--max-loras`.",
        new_behavior="The request counts until it ends.",
    )
    DRAFTED_BLOCKS = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior=(
            "Without asynchronous scheduling, the next step caches a block that right drafts fill."
        ),
        new_behavior="The block is cached when the step of these drafts is over.",
    )
    KNOWN_STATES = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior="With Mamba layers, a request waits while a request whose prompt it repeats "
        "is in the steps after its prompt.",
        new_behavior="The request starts, and reuses the state at the end of the prompt.",
    )
    OFFERS_AGAIN = Difference(
        since="0.33",
        area="Scheduler",
        old_behavior="A preempted request stores no blocks that it has stored before, although the "
        "CPU tier may have evicted them.",
        new_behavior="The request stores missing blocks again. Of a running request, the CPU tier "
        "evicts the later blocks first.",
    )
    OFFLOADED_BLOCKS = Difference(
        since="0.33",
        area="Metrics",
        old_behavior="`vllm:cache_config_info` has no `simple_cpu_offload_num_blocks` label.",
        new_behavior='The `simple_cpu_offload_num_blocks` label is "None".',
    )
    RENDERED_REQUESTS = Difference(
        since="0.33",
        area="Scale-out",
        old_behavior="Rendered requests do not describe how the reply is parsed. "
        "`extra_args` contains the transfer parameters.",
        new_behavior="Rendered requests have `parse_context`, null for completions and responses, "
        "and repeat `return_token_ids`. `kv_transfer_params` and `ec_transfer_params` are fields.",
    )
    DERENDER_OUTPUT_MODE = Difference(
        since="0.33",
        area="Scale-out",
        old_behavior="`/inference/v1/generate` has the `tokens` and `text` output modes.",
        new_behavior="The `derender` output mode returns the parsed message of each choice. It "
        "requires `parse_context` if the server has a parser and cannot be streamed.",
        request_fields=("parse_context",),
    )
    DERENDER_AS_GENERATED = Difference(
        since="0.33",
        area="Scale-out",
        old_behavior="Derendered responses keep the `finish_reason` of the tokens, the token or "
        "string that stopped the reply, all calls and all alternatives of log probabilities.",
        new_behavior="Derendered responses match generated ones: calls, `finish_reason`, "
        "alternatives and token IDs follow the request, and texts end before the stop. Streams of "
        "requests with `stop` are rejected.",
    )
    TOKEN_EMBEDDINGS = Difference(
        since="0.33",
        area="Pooling",
        old_behavior="Models with `--pooler-config.task token_embed` answer `/v1/embeddings` and "
        "`/v2/embed` with the 501 status.",
        new_behavior="`/v1/embeddings` of these models returns a vector for each token, or for "
        "each chunk of a text with `late_chunking_params`. They have no `/v2/embed`.",
    )
    DECISIONS = Difference(
        since="0.33",
        area="Decisions",
        old_behavior="There is no `/v1/decisions`. `/v1/systemone` ignores unknown fields.",
        new_behavior="`POST /v1/decisions` answers predicates, choices, and scores about a text. "
        "`/v1/systemone` rejects unknown fields and has `joint`. Gemma 4 supports both.",
    )
    ELASTIC_STATUS = Difference(
        since="0.33",
        area="Development",
        old_behavior="`/is_scaling_elastic_ep` returns only whether the ranks are changing.",
        new_behavior="`/is_scaling_elastic_ep` also has `phase`, `epoch`, `error`, and "
        "`requested_data_parallel_size`.",
    )
    PROFILER_KWARGS = Difference(
        since="0.33",
        area="Development",
        old_behavior="`/start_profile` ignores `profiler_kwargs`.",
        new_behavior="`/start_profile` has the `profiler_kwargs` field, an object.",
        request_fields=("profiler_kwargs",),
    )


class VllmVersion(Struct, frozen=True):
    """A version of vLLM."""

    name: str
    """Value of the setting vllm-version."""
    release: str
    """Number that vLLM reports."""
    features: frozenset[Feature]

    ignored_fields: frozenset[str]
    """Fields of requests that only other versions know."""
    nullable_fields: frozenset[str]
    """Fields of requests whose null stands for the default."""

    def has(self, feature: Feature) -> bool:
        """Returns whether this version has the feature."""
        return feature in self.features
