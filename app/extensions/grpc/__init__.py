"""vLLM's gRPC service."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.server.http.rpc import RpcService
    from config import Settings


class Grpc(Extension):
    """Generation, embeddings, health and KV events over gRPC."""

    name = "grpc"
    requires = ("pooling",)
    reads_kv_events = True
    _caches: Mapping[str, Bounded] = MappingProxyType({})

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether a port serves gRPC."""
        return settings.server.speaks_grpc

    def rpc(self) -> RpcService:
        """Returns the methods of the service."""
        from app.extensions.grpc.service import EngineService  # imports protobuf

        parts = self.parts
        service = EngineService(
            parts.pipeline, parts.lifecycle, parts.is_ready, self._cache_usage, parts.publisher
        )
        self._caches = service.caches
        return service.methods()

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the features of texts."""
        return self._caches

    def _cache_usage(self) -> float:
        return self.parts.recorder.figures().cache_usage
