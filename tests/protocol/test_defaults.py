"""What a body means where it says nothing: of every field that is not null, false or empty then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, UNSET, Struct

from app.serving.protocol import (
    anthropic,
    chat,
    common,
    completions,
    generate,
    options,
    pooling,
    responses,
    tokenize,
)

GENERATES = {
    "n": 1,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "priority": 0,
    "routed_experts_prompt_start": 0,
    "mm_payload": "tensors",
}
CHATS = {
    **GENERATES,
    "top_logprobs": 0,
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "add_generation_prompt": True,
}
POOLS = {"priority": 0}
ENCODES = {**POOLS, "encoding_format": "float", "embed_dtype": "float32", "endianness": "native"}
SCORES = {**POOLS, "max_tokens_per_query": 0, "max_tokens_per_doc": 0}
DEFAULTS: dict[type[Struct], dict[str, Any]] = {
    chat.ChatCompletionRequest: CHATS,
    chat.BatchChatRequest: {**CHATS, "tool_choice": "none"},
    completions.CompletionRequest: {**GENERATES, "max_tokens": 16, "add_special_tokens": True},
    responses.ResponsesRequest: {
        "parallel_tool_calls": True,
        "include_reasoning": True,
        "service_tier": "auto",
        "store": True,
        "tool_choice": "auto",
        "top_logprobs": 0,
        "truncation": "disabled",
        "skip_special_tokens": True,
        "priority": 0,
        "mm_payload": "tensors",
    },
    anthropic.MessagesRequest: {"priority": 0, "mm_payload": "tensors"},
    anthropic.CountTokensRequest: {},
    generate.SamplingParams: {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "min_tokens": 0,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
    },
    generate.GenerateRequest: {"output_mode": "tokens", "priority": 0},
    generate.AbortRequest: {},
    options.StreamOptions: {},
    options.StructuredOutputs: {},
    options.RepetitionDetection: {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0},
    options.Tool: {"type": "function"},
    options.AllowedTools: {"mode": "auto"},
    options.NamedToolChoice: {"type": "function"},
    pooling.ClassificationRequest: POOLS,
    pooling.EmbeddingRequest: ENCODES,
    pooling.PoolingRequest: ENCODES,
    pooling.ScoreRequest: SCORES,
    pooling.RerankRequest: {**SCORES, "top_n": 0},
    tokenize.TokenizeChatRequest: {"add_generation_prompt": True},
    tokenize.TokenizePromptRequest: {"add_special_tokens": True},
    tokenize.ScoreTextRequest: {"add_special_tokens": True},
    tokenize.ScoreChatRequest: {"add_generation_prompt": True},
    tokenize.DetokenizeRequest: {},
    common.KVTransferParams: {
        "do_remote_prefill": True,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "transfer_mode": "pull",
    },
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_what_is_left_out_means_what_it_means_to_vllm(kind: type[Struct]) -> None:
    given = {it.encode_name: _default(it) for it in msgspec.structs.fields(kind)}
    expected = DEFAULTS[kind]
    assert {name: value for name, value in given.items() if value or name in expected} == expected


def _default(field: Any) -> object:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return None if field.default in (NODEFAULT, UNSET) else field.default
