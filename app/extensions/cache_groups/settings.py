"""Settings of the KV cache groups."""

from typing import Annotated

from config.declaration import SIMULATED, About, NotNegative, Section


class CacheGroupsSettings(Section, frozen=True, kw_only=True):
    """KV cache groups of hybrid models."""

    kv_cache_groups: Annotated[str, SIMULATED] = ""
    """KV cache groups for a hybrid model, as in vLLM: gpt-oss, gemma-3, qwen3-next, or the path to
    the model's config.json. If this setting is empty, the cache has one group for all layers."""
    prefix_cache_retention_interval: Annotated[
        NotNegative, About(simulated=True, unit="tokens")
    ] = 0
    """Number of tokens between the positions at which a hybrid model caches sliding windows and
    linear attention states. The value must be a multiple of block-size. If the value is 0, only the
    ends of prompts and of shared prefixes are cached."""
