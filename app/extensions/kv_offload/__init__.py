"""Tiers of KV blocks in host memory and on disk, as of vLLM's OffloadingConnector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.kv_offload.settings import KvOffloadSettings

if TYPE_CHECKING:
    from app.core.engine.kvcache.cache import KVCacheManager
    from config import Settings as AllSettings


class KvOffload(Extension):
    """Replaces the KV cache by one that stores its blocks in tiers of limited size."""

    name = "kv_offload"
    Settings = KvOffloadSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns True if the host has a tier."""
        return settings.section(KvOffloadSettings).kv_offload_size > 0

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the sizes of the tiers."""
        from app.extensions.kv_offload.options import offload_options

        offload_options(settings)

    def kv_cache(self) -> Callable[..., KVCacheManager]:
        """Returns what makes a cache with tiers."""
        from app.extensions.kv_offload.cache import TieredCache

        return TieredCache.maker(self.parts.settings)
