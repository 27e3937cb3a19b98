"""vLLM's gRPC service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.core.extensions import Extension
from config.declaration import missing

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.extensions.grpc.late import LateService
    from config import Settings


class Grpc(Extension):
    """Generation, embeddings, health and KV events over gRPC."""

    name = "grpc"
    requires = ("pooling",)

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._service: LateService | None = None
        # Servers that offer gRPC by default make no events that probably no client wants.
        self.reads_kv_events = parts.server.speaks_grpc

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether gRPC is on, or may be on by default."""
        server = settings.server
        if server.grpc is None and server.fast_path and not settings.tls.enabled:
            return not missing("grpc")
        return server.speaks_grpc

    def rpc(self) -> Any:
        """Returns the service, or without a setting what loads it with the first connection."""
        from app.extensions.grpc.late import LateService

        self._service = LateService(self.parts)
        if self.parts.server.speaks_grpc:
            return self._service.load()
        return self._service

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the features of texts."""
        if self._service is None:
            return {}
        return self._service.caches
