"""Loads the service of a server without `--grpc` at its first call.

Most servers offer gRPC, and few have a client that speaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import gevent

from app.core.base.late_imports import import_modules
from app.extensions.grpc.http2.greeting import Http2Greeting
from app.extensions.grpc.http2.limits import message_limit

if TYPE_CHECKING:
    from app.core.server.gunicorn.hub_connection import FastPath
    from app.core.server.http.rpc import RpcHandlers, RpcService, Upgrade
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


class LateService:
    """Greets clients of HTTP/2, and loads the service at the first call."""

    def __init__(
        self,
        load: Callable[[], RpcService],
        server: ServerSettings,
        modules: Sequence[str] = MODULES,
    ) -> None:
        """`load` creates the service, after the import of `modules`."""
        self._load = load
        self._modules = modules
        self._waiting: list[Http2Greeting] = []
        """Connections with a call, while the service is loaded."""
        self.upgrade: Upgrade = partial(
            Http2Greeting, max_message_bytes=message_limit(server), take_over=self._take_over
        )

    def _take_over(self, greeting: Http2Greeting) -> None:
        """Hub: the first call starts a greenlet that imports the service; further ones wait."""
        self._waiting.append(greeting)
        if len(self._waiting) == 1:
            gevent.spawn(self._serve, greeting.path)

    def _serve(self, path: FastPath) -> None:
        import_modules(*self._modules)
        from app.extensions.grpc.http2.http2_connection import Http2Connection

        app = path.app
        assert app is not None
        app.rpc = self._load()
        path.upgrade = app.rpc.upgrade
        waiting = self._waiting
        self._waiting = []
        for greeting in waiting:
            greeting.continue_with(Http2Connection.take_over)


def late_methods(handlers: RpcHandlers, server: ServerSettings) -> LateService:
    """Returns the service of an application with another role, before its first call."""

    def load() -> RpcService:
        from app.extensions.grpc.methods import service_of

        return service_of(handlers(), server)

    return LateService(load, server, FEW_MODULES)
