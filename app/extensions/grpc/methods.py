"""Services of gRPC from handlers of messages, with reflection."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from google.protobuf.message import Message

from app.core.server.http.context import RequestContext
from app.core.server.http.rpc import RpcMethod, RpcResponse, RpcService
from app.extensions.grpc.http2.greeting import Http2Greeting
from app.extensions.grpc.http2.http2_connection import Http2Connection
from app.extensions.grpc.http2.limits import message_limit
from app.extensions.grpc.messages import Proto, framed_message, read
from app.extensions.grpc.reflection import REFLECTIONS, input_type, reflect
from config.sections.server import ServerSettings

Answer: TypeAlias = Message | RpcResponse
Handler: TypeAlias = Callable[[Proto, RequestContext], Answer]


def service_of(handlers: Mapping[str, Handler], server: ServerSettings) -> RpcService:
    """Returns a service with these methods and reflection; names are PACKAGE.SERVICE/METHOD."""
    services = dict.fromkeys([name.partition("/")[0] for name in handlers])
    reflection = partial(reflect, (*services, *REFLECTIONS))
    named = dict(handlers)
    for name in REFLECTIONS:
        named[f"{name}/ServerReflectionInfo"] = reflection
    max_message_bytes = message_limit(server)
    return RpcService(
        methods={f"/{name}": rpc_method(name, handler) for name, handler in named.items()},
        max_message_bytes=max_message_bytes,
        upgrade=partial(
            Http2Greeting,
            max_message_bytes=max_message_bytes,
            take_over=Http2Connection.take_over,
        ),
    )


def rpc_method(name: str, handler: Handler) -> RpcMethod:
    """Returns the method that reads the message which its service declares."""
    service, _, method = name.partition("/")
    message_type = input_type(service, method)

    def handle(context: RequestContext) -> RpcResponse:
        answer = handler(read(context, message_type), context)
        if isinstance(answer, RpcResponse):
            return answer
        return RpcResponse(framed_message(answer))

    return RpcMethod(path=f"/{name}", handle=handle, answers_each=service in REFLECTIONS)
