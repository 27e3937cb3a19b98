"""vLLM's gRPC service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.core.extensions import Extension
from config.declaration import missing

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.gunicorn.hub_connection import FastPath
    from config import Settings


class Grpc(Extension):
    """Generation, embeddings, health and KV events over gRPC.

    Without a setting, this object stands for the service until the first connection loads that.
    """

    name = "grpc"
    requires = ("pooling",)
    loaded_caches: Mapping[str, Bounded] | None = None
    """The caches of the service; None until it is loaded."""

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
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
        """Returns the service, or this object: workers read its `upgrade`."""
        if not self.parts.server.speaks_grpc:
            return self
        from app.extensions.grpc.late import create_service

        return create_service(self)

    def upgrade(self, path: FastPath, *connection: Any) -> None:
        """Takes a connection over from the worker's path; see `rpc.Upgrade`."""
        from app.extensions.grpc.late import upgrade

        upgrade(self, path, connection)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the features of texts."""
        return self.loaded_caches or {}
