"""How many tokens a request took, as vLLM tells it: every key in vLLM's order, UNSET is left out."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    created_cache_tokens: int | None | UnsetType = UNSET
    multimodal_tokens: Mapping[str, int] | None | UnsetType = UNSET


class CompletionTokensDetails(Struct):
    """What the reply's tokens were."""

    reasoning_tokens: int


class Usage(Struct):
    """`usage` of chat, completions, generate and pooling."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | None | UnsetType = UNSET
