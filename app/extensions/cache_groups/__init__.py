"""KV cache groups of hybrid models, as in vLLM: a block table for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.cache_groups.settings import CacheGroupsSettings

if TYPE_CHECKING:
    from app.core.engine.kvcache.cache import KVCacheManager
    from config import Settings as AllSettings


class CacheGroups(Extension):
    """Replaces the KV cache by one with the groups of the setting `kv-cache-groups`."""

    name = "cache_groups"
    Settings = CacheGroupsSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns True if the cache has groups."""
        return bool(settings.section(CacheGroupsSettings).kv_cache_groups)

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the groups."""
        from app.extensions.cache_groups.options import cache_options

        cache_options(settings)

    def kv_cache(self) -> Callable[..., KVCacheManager]:
        """Returns what makes a cache with the groups."""
        from app.extensions.cache_groups.cache import GroupedCache

        return GroupedCache.maker(self.parts.settings)
