"""Options of a cache with groups, from the settings."""

from __future__ import annotations

from msgspec import Struct

from app.core.engine.batch import SchedulerRules
from app.core.versions.chain import simulated_version
from app.extensions.cache_groups.layers import GroupSpec, group_layers
from app.extensions.cache_groups.presets import read_layers
from app.extensions.cache_groups.settings import CacheGroupsSettings
from config import ConfigError, Settings

MEMORYLESS = ("", "none", "example", "offloading")
"""Connectors without a side channel."""


class GroupRules(Struct, frozen=True, kw_only=True):
    """Rules of cache groups that differ between versions of vLLM; the defaults are the newest."""

    frees_under_way: bool = False
    """Blocks before a window are freed while the steps that read them are under way."""
    keeps_junctions: bool = True
    """A prompt pauses at its junction in each chunk, and the blocks before it stay cached."""


class CacheOptions(Struct, frozen=True):
    """The groups of a cache.

    `retention_blocks` is the distance of the positions that stay cached, in blocks; 0 keeps only
    the ends of prompts. A step computes at most `max_batched_tokens`, and up to `depth` steps are
    under way. A step computes at most `max_prompt_tokens` of one prompt among others.
    """

    groups: list[GroupSpec]
    retention_blocks: int
    max_batched_tokens: int
    max_model_len: int
    max_prompt_tokens: int
    depth: int = 1
    in_steps: bool = True
    """True if sequences share steps: a prompt waits for the room of its next chunk."""
    shares_known_states: bool = True
    """See `SchedulerRules`."""
    checkpoints_before_end: bool = True
    """See `SchedulerRules`."""
    reconciles_hits: bool = True
    """See `SchedulerRules`."""
    frees_all_skipped_states: bool = True
    """See `SchedulerRules`."""
    rules: GroupRules = GroupRules()


def cache_options(settings: Settings) -> CacheOptions:
    """Returns the options of the cache.

    Raises:
        ConfigError: the groups or the interval cannot be used.
    """
    section = settings.section(CacheGroupsSettings)
    if settings.engine.is_real or not settings.kvcache.enable_kvcache:
        raise ConfigError("setting kv-cache-groups: requires enable-kvcache and a simulated engine")
    try:
        groups = group_layers(read_layers(section.kv_cache_groups))
    except ValueError as error:
        raise ConfigError(f"setting kv-cache-groups: {error}") from None
    block_size = settings.kvcache.block_size
    interval = section.prefix_cache_retention_interval
    if interval % block_size:
        raise ConfigError(
            f"setting prefix-cache-retention-interval: {interval} is not a multiple of "
            f"block-size ({block_size})"
        )
    if settings.kvcache.kv_connector not in MEMORYLESS:
        raise ConfigError(
            f"setting kv-cache-groups: kv-connector {settings.kvcache.kv_connector} "
            "supports only one group"
        )
    if settings.kvcache.kv_cache_size - 1 < 2 * len(groups):
        raise ConfigError(
            f"setting kv-cache-size: {len(groups)} groups require more than "
            f"{2 * len(groups)} blocks"
        )
    version = simulated_version(settings.api)
    rules = version.rules(SchedulerRules)
    steps = settings.steps
    step_tokens = steps.max_num_batched_tokens
    return CacheOptions(
        groups=groups,
        retention_blocks=interval // block_size,
        max_batched_tokens=step_tokens,
        max_model_len=settings.model.max_model_len,
        max_prompt_tokens=min(step_tokens, steps.long_prefill_token_threshold or step_tokens),
        depth=2 if steps.async_scheduling else 1,
        in_steps=steps.shared,
        shares_known_states=rules.shares_known_states,
        checkpoints_before_end=rules.checkpoints_before_end,
        reconciles_hits=rules.reconciles_hits,
        frees_all_skipped_states=rules.frees_all_skipped_states,
        rules=version.rules(GroupRules),
    )
