"""Loads the service of a server without `--grpc` at its first connection.

Most servers offer gRPC, and few have a client that speaks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent

from app.core.base.late_imports import import_modules

if TYPE_CHECKING:
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


def upgrade(path: FastPath, connection: tuple[Any, ...], load: Callable[[], RpcService]) -> None:
    """Imports the service in a greenlet, and hands the connection to what `load` returns."""
    gevent.spawn(_serve, path, connection, load)


def _serve(path: FastPath, connection: tuple[Any, ...], load: Callable[[], RpcService]) -> None:
    import_modules(*MODULES)
    app = path.app
    assert app is not None
    app.rpc = load()
    path.upgrade = app.rpc.upgrade
    path.upgrade(path, *connection)
