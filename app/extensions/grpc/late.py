"""Loads the service of a server: at its start with `--grpc`, else at its first connection.

Most servers offer gRPC, and few have a client that speaks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

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


class Loader(Protocol):
    """The extension, as the functions here use it."""

    parts: ServerParts
    loaded_caches: Mapping[str, Bounded] | None

    def upgrade(self, path: FastPath, *connection: Any) -> None:
        """Takes a connection over before the service is loaded."""


def upgrade(extension: Loader, path: FastPath, connection: tuple[Any, ...]) -> None:
    """Loads the service in a greenlet, and hands the connection to it."""
    gevent.spawn(_serve, extension, path, connection)


def _serve(extension: Loader, path: FastPath, connection: tuple[Any, ...]) -> None:
    import_modules(*MODULES)
    app = path.app
    assert app is not None
    # Of connections that came during the import, the first one creates the service.
    if path.upgrade == extension.upgrade:
        app.rpc = create_service(extension)
        path.upgrade = app.rpc.upgrade
    assert path.upgrade is not None
    path.upgrade(path, *connection)


def create_service(extension: Loader) -> RpcService:
    """Returns the service of a server, and gives its caches to the extension."""
    from app.extensions.grpc.service import EngineService

    parts = extension.parts

    def cache_usage() -> float:
        return parts.recorder.figures().cache_usage

    service = EngineService(
        parts.pipeline, parts.lifecycle, parts.is_ready, cache_usage, parts.publisher
    )
    extension.loaded_caches = service.caches
    return service.methods()
