"""Loads the service of a server without `--grpc` at its first connection.

Most servers offer gRPC, and few have a client that speaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gevent

from app.core.base.late_imports import import_modules

if TYPE_CHECKING:
    from app.core.server.gunicorn.hub_connection import FastPath
    from app.core.server.http.rpc import RpcHandlers, RpcService
    from config.sections.server import ServerSettings

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
FEW_MODULES = (*MODULES[:-3], "app.extensions.grpc.messages", "app.extensions.grpc.methods")
"""Modules that the methods of an application with another role need."""


class LateMethods:
    """The service of an application with another role, before its first connection."""

    def __init__(self, handlers: RpcHandlers, server: ServerSettings) -> None:
        self._handlers = handlers
        self._server = server

    def upgrade(self, path: FastPath, *connection: Any) -> None:
        """Takes a connection over from the worker's path; see `rpc.Upgrade`."""
        gevent.spawn(_serve, path, connection, self._load, modules=FEW_MODULES)

    def _load(self) -> RpcService:
        from app.extensions.grpc.methods import service_of

        return service_of(self._handlers(), self._server)


def upgrade(path: FastPath, connection: tuple[Any, ...], load: Callable[[], RpcService]) -> None:
    """Imports the service in a greenlet, and hands the connection to the result of `load`."""
    gevent.spawn(_serve, path, connection, load, modules=MODULES)


def _serve(
    path: FastPath,
    connection: tuple[Any, ...],
    load: Callable[[], RpcService],
    modules: Sequence[str],
) -> None:
    import_modules(*modules)
    app = path.app
    assert app is not None
    app.rpc = load()
    path.upgrade = app.rpc.upgrade
    path.upgrade(path, *connection)
