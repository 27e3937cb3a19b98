"""Loads the service of a server: at its start with `--grpc`, else at its first connection.

Most servers offer gRPC, and few have a client that speaks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gevent

from app.core.base.late_imports import import_modules

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.gunicorn.hub_connection import FastPath
    from app.core.server.http.rpc import RpcService

MODULES = (
    "h2.connection",
    "google.protobuf.message",
    "google.protobuf.descriptor_pb2",
    "grpc_health.v1.health_pb2",
    "smg_grpc_proto.generated.common_pb2",
    "smg_grpc_proto.generated.vllm_engine_pb2",
    "app.core.engine.kvcache.publisher",
    "app.extensions.grpc.messages",
    "app.extensions.grpc.service",
)
"""Modules that the service needs, each after those that it imports."""


class LateService:
    """Stands for the service until it is loaded: workers read its `upgrade`."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self.caches: Mapping[str, Bounded] = {}
        """The caches of the service; none until it is loaded."""

    def load(self) -> RpcService:
        """Returns the service."""
        from app.extensions.grpc.service import EngineService

        parts = self._parts

        def cache_usage() -> float:
            return parts.recorder.figures().cache_usage

        service = EngineService(
            parts.pipeline, parts.lifecycle, parts.is_ready, cache_usage, parts.publisher
        )
        self.caches = service.caches
        return service.methods()

    def upgrade(self, path: FastPath, *connection: Any) -> None:
        """Takes a connection over from the worker's path, and loads the service in a greenlet.

        See `rpc.Upgrade`.
        """
        gevent.spawn(self._serve, path, connection)

    def _serve(self, path: FastPath, connection: tuple[Any, ...]) -> None:
        import_modules(*MODULES)
        app = path.app
        assert app is not None
        # Of connections that came during the import, the first one creates the service.
        if path.upgrade == self.upgrade:
            app.rpc = self.load()
            path.upgrade = app.rpc.upgrade
        assert path.upgrade is not None
        path.upgrade(path, *connection)
