"""Options of the tiers, from the settings."""

from __future__ import annotations

from msgspec import Struct

from app.core.base.metrics.optional_families import TOKEN_BYTES
from app.core.engine.batch import SchedulerRules
from app.core.versions.chain import simulated_version
from app.extensions.kv_offload.settings import KvOffloadSettings
from config import ConfigError, Settings

GIB = 1 << 30
PAGE_BYTES = 4096
"""vLLM rounds the size of a chunk up to whole pages of memory."""


class OffloadRules(Struct, frozen=True, kw_only=True):
    """Rules of tiers that differ between versions of vLLM; the defaults are the newest."""

    offers_ended: bool = True
    """The chunks of a sequence that had no room are offered once more after its end."""


class OffloadOptions(Struct, frozen=True, kw_only=True):
    """Sizes in chunks, bandwidths in bytes per second."""

    chunks: int
    """Capacity of the tier in host memory."""
    block_bytes: float
    blocks_per_chunk: int = 1
    bandwidth: float = 50e9
    policy: str = "lru"
    store_threshold: int = 0
    is_prompt_only: bool = True
    has_full_events: bool = False
    disk_chunks: int = 0
    """Capacity of the tier on disk; 0 without one."""
    disk_bandwidth: float = 6e9
    has_disk_events: bool = False
    has_prefix_cache: bool = True
    """False if the devices do not keep blocks for later prompts."""
    in_steps: bool = False
    """True if sequences share steps: the scheduler then waits for loads."""
    offers_again: bool = False
    """A preempted sequence offers all its chunks again."""
    orders_prompts: bool = False
    """The LRU evicts the later chunks of a running sequence first."""
    chunk_uses: str = "requests"
    """See `SchedulerRules`."""
    rules: OffloadRules = OffloadRules()

    @property
    def chunk_bytes(self) -> float:
        """Size of a chunk."""
        return self.block_bytes * self.blocks_per_chunk


def chunk_count(size_bytes: float, chunk_bytes: float) -> int:
    """Returns the number of chunks that fit into a tier of this size."""
    page_bytes = -(-chunk_bytes // PAGE_BYTES) * PAGE_BYTES
    return int(size_bytes // page_bytes)


def is_selected(settings: Settings) -> bool:
    """Returns whether the settings name an OffloadingConnector, alone or beside a handoff."""
    connector = settings.kvcache.kv_connector
    if connector == "offloading":
        return True
    return connector != "p2p" and settings.get("kv-store", "") == "offloading"


def offload_options(settings: Settings) -> OffloadOptions:
    """Returns the options.

    Raises:
        ConfigError: The tiers cannot be used with the other settings, or have no room for a chunk.
    """
    section = settings.section(KvOffloadSettings)
    if not is_selected(settings):
        raise ConfigError("setting kv-offload-size: requires kv-connector to be offloading")
    if settings.engine.is_real:
        raise ConfigError("setting kv-offload-size: requires a simulated engine")
    if settings.get("kv-cache-groups", ""):
        raise ConfigError("setting kv-offload-size: cannot be combined with kv-cache-groups")
    if section.kv_offload_disk_size and section.kv_offload_store_threshold >= 2:
        raise ConfigError(
            "setting kv-offload-store-threshold: cannot be combined with kv-offload-disk-size"
        )
    block_bytes = settings.kvcache.block_size * _bytes_per_token(settings, section)
    blocks_per_chunk = _blocks_per_chunk(settings, section)
    chunk_bytes = block_bytes * blocks_per_chunk
    chunks = chunk_count(section.kv_offload_size * GIB, chunk_bytes)
    disk_chunks = chunk_count(section.kv_offload_disk_size * GIB, chunk_bytes)
    for name, size, capacity in (
        ("kv-offload-size", section.kv_offload_size, chunks),
        ("kv-offload-disk-size", section.kv_offload_disk_size, disk_chunks),
    ):
        if size and not capacity:
            raise ConfigError(
                f"setting {name}: {size:g} GiB is too small for a chunk of {chunk_bytes:.0f} bytes"
            )
    version = simulated_version(settings.api)
    rules = version.rules(SchedulerRules)
    return OffloadOptions(
        chunks=chunks,
        block_bytes=block_bytes,
        blocks_per_chunk=blocks_per_chunk,
        bandwidth=section.kv_offload_bandwidth * 1e9,
        policy=section.kv_offload_policy,
        store_threshold=section.kv_offload_store_threshold,
        is_prompt_only=section.kv_offload_prompt_only,
        has_full_events=section.kv_offload_full_events,
        disk_chunks=disk_chunks,
        disk_bandwidth=section.kv_offload_disk_bandwidth * 1e9,
        has_disk_events=section.kv_offload_disk_events,
        has_prefix_cache=settings.kvcache.enable_kvcache,
        in_steps=settings.steps.shared,
        orders_prompts=rules.offers_again,
        offers_again=rules.offers_again,
        chunk_uses=rules.chunk_uses,
        rules=version.rules(OffloadRules),
    )


def _blocks_per_chunk(settings: Settings, section: KvOffloadSettings) -> int:
    tokens = section.kv_offload_block_size
    block_size = settings.kvcache.block_size
    if tokens % block_size:
        raise ConfigError(
            f"setting kv-offload-block-size: {tokens} is not a multiple of block-size "
            f"({block_size})"
        )
    return tokens // block_size or section.kv_offload_blocks_per_chunk


def _bytes_per_token(settings: Settings, section: KvOffloadSettings) -> float:
    if section.kv_offload_bytes_per_token:
        return section.kv_offload_bytes_per_token
    if settings.steps.shared:
        from app.core.profiles import chosen_profile

        profile = chosen_profile(settings, decided=settings.table.by_name)
        if profile.kv_bytes_per_token is not None:
            return profile.kv_bytes_per_token
    return TOKEN_BYTES
