"""What every gRPC server has: `grpc.health.v1.Health`, and reflection of which services there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gevent
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from app.api.grpc.messages import SERVICE, answer, read
from app.http.context import RequestContext
from app.http.errors import ApiError, not_found
from app.http.response import StreamingBody
from app.http.rpc import RpcCode, RpcMethod, RpcOutcome, RpcResponse, framed
from app.http.stream import StreamTransport

health: Any = health_pb2
reflected: Any = reflection_pb2
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients ask the first, and then the other."""
LOOK_S = 0.2
"""How often a watched health is looked at."""
MOST_WATCHERS = 256
"""At a time: each of them looks by itself."""


def health_methods(is_ready: Callable[[], bool]) -> list[RpcMethod]:
    """Check and Watch, of the server as a whole ("") and of the engine's service."""

    watchers: set[WatchedHealth] = set()

    def status(service: str) -> int:
        if service not in ("", SERVICE):
            return int(health.HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = health.HealthCheckResponse.SERVING, health.HealthCheckResponse.NOT_SERVING
        return int(serving if is_ready() else not_serving)

    def check(context: RequestContext) -> RpcResponse:
        """The health now."""
        found = status(read(context, health.HealthCheckRequest).service)
        if found == health.HealthCheckResponse.SERVICE_UNKNOWN:
            raise not_found("No such service is known here.")
        return answer(health.HealthCheckResponse(status=found))

    def watch(context: RequestContext) -> RpcResponse:
        """The health now, and whenever it is another."""
        service = read(context, health.HealthCheckRequest).service
        if len(watchers) >= MOST_WATCHERS:
            raise ApiError(429, "RateLimitError", f"There are {MOST_WATCHERS} watchers already.")
        watched = WatchedHealth(lambda: status(service))
        watchers.add(watched)
        response = RpcResponse(watched)
        response.on_close(lambda: watchers.discard(watched))
        return response

    return [RpcMethod(f"/{HEALTH}/Check", check), RpcMethod(f"/{HEALTH}/Watch", watch)]


class WatchedHealth(StreamingBody):
    """Tells `status` when it has changed, until the client leaves."""

    __slots__ = ("_greenlet", "_status", "_transport")
    endless = True

    def __init__(self, status: Callable[[], int]) -> None:
        super().__init__()
        self._status = status
        self._transport: StreamTransport | None = None
        self._greenlet: gevent.Greenlet | None = None

    def attach(self, transport: StreamTransport) -> None:
        """Tell it from now on."""
        self._transport = transport
        self._greenlet = gevent.spawn(self._watch, transport)

    def _watch(self, transport: StreamTransport) -> None:
        told = None
        while transport.is_open:
            if (status := self._status()) != told and not transport.lags:
                told = status
                transport.write(framed(health.HealthCheckResponse(status=status).SerializeToString()))
            gevent.sleep(LOOK_S)

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError

    def close(self) -> None:
        """The call is over."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)


def reflection_methods(services: Sequence[str]) -> list[RpcMethod]:
    """What `grpcurl` asks: the names of `services`, and the files that declare them."""
    pool: Any = descriptor_pool.Default()

    def answered(context: RequestContext) -> RpcResponse:
        """One question of a call that may have many."""
        asked = read(context, reflected.ServerReflectionRequest)
        told = reflected.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
        kind = asked.WhichOneof("message_request")
        if kind == "list_services":
            told.list_services_response.service.extend(
                [reflected.ServiceResponse(name=name) for name in services]
            )
        elif kind in FINDERS:
            try:
                file = FINDERS[kind](pool, asked)
                told.file_descriptor_response.file_descriptor_proto.extend(_with_imports(file))
            except KeyError:
                told.error_response.error_code = int(RpcCode.NOT_FOUND)
                told.error_response.error_message = "This is not known here."
        else:
            told.error_response.error_code = int(RpcCode.UNIMPLEMENTED)
            told.error_response.error_message = "Extensions are not used here."
        return answer(told)

    paths = [f"/{service}/ServerReflectionInfo" for service in REFLECTIONS]
    return [RpcMethod(path, answered, each=True) for path in paths]


def _containing(pool: Any, symbol: str) -> Any:
    """The file that declares it, which may be a method. KeyError where none does."""
    try:
        return pool.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, method = symbol.rpartition(".")
        found = pool.FindServiceByName(service)
        found.methods_by_name[method]
        return found.file


FINDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "file_by_filename": lambda pool, asked: pool.FindFileByName(asked.file_by_filename),
    "file_containing_symbol": lambda pool, asked: _containing(pool, asked.file_containing_symbol),
}


def _with_imports(file: Any) -> list[bytes]:
    """A file and all that it imports, each once."""
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one.name not in found:
            found[one.name] = one.serialized_pb
            waiting += one.dependencies
    return list(found.values())


def unimplemented(path: str, text: str) -> RpcMethod:
    """A method that is declared, and does not do anything here."""

    def handle(context: RequestContext) -> RpcResponse:
        return RpcResponse(b"", None, RpcOutcome(RpcCode.UNIMPLEMENTED, text), 501)

    return RpcMethod(path, handle)
