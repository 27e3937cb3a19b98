"""vLLM's gRPC service."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app.core.extensions import Extension
from config.declaration import missing

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import Understudy
    from app.core.server.gunicorn.hub_connection import FastPath
    from app.core.server.http.rpc import RpcService, Upgrade
    from app.extensions.grpc.service import EngineService
    from config import Settings


class Grpc(Extension):
    """Generation, embeddings, health and KV events over gRPC."""

    name = "grpc"
    requires = ("pooling",)

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._service: EngineService | None = None
        self._methods: RpcService
        # Servers that offer gRPC by default make no events that probably no client wants.
        self.reads_kv_events = parts.server.speaks_grpc

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether gRPC is on, or may be on by default."""
        server = settings.server
        if server.grpc is None and server.fast_path and not settings.tls.enabled:
            return not missing("grpc")
        return server.speaks_grpc

    @classmethod
    def describe(cls, app: Understudy, settings: Settings) -> None:
        """Serves the methods of an application with another role."""
        if app.rpc_handlers is not None:
            from app.extensions.grpc.late import late_methods

            app.rpc = late_methods(app.rpc_handlers, settings.server)  # type: ignore[assignment]

    def rpc(self) -> Any:
        """Returns the service. Without a setting, returns this object: workers read `upgrade`."""
        if self.parts.server.speaks_grpc:
            return self._load()
        return self

    @cached_property
    def _late(self) -> Upgrade:
        from app.extensions.grpc.late import LateService

        return LateService(self._load, self.parts.server).upgrade

    def upgrade(self, path: FastPath, *connection: Any) -> None:
        """Takes a connection over from the worker's path; see `rpc.Upgrade`."""
        self._late(path, *connection)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the features of texts."""
        if self._service is None:
            return {}
        return self._service.caches

    def _load(self) -> RpcService:
        """Returns the service, which the first call creates."""
        if self._service is None:
            from app.extensions.grpc.service import EngineService

            parts = self.parts
            self._service = EngineService(
                parts.pipeline,
                parts.lifecycle,
                parts.is_ready,
                self._cache_usage,
                parts.publisher,
            )
            handlers = [extension.rpc_handlers() for extension in parts.extensions]
            self._methods = self._service.methods(handlers)
        return self._methods

    def _cache_usage(self) -> float:
        return self.parts.recorder.figures().cache_usage
