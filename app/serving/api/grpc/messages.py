"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse, framed

engine: Any = vllm_engine_pb2
common: Any = common_pb2
SERVICE: Final = "vllm.grpc.engine.VllmEngine"
MOST_MESSAGE_BYTES: Final = 1 << 20
"""Largest message, whatever the limit of HTTP bodies: protobuf takes up to 45 ms for it, in one go."""


def read(context: RequestContext, kind: type[Message]) -> Any:
    """Reads the message of type `kind` in the body. ApiError 400 for a broken message."""
    try:
        return kind.FromString(context.body or b"")
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def framed_message(message: Message) -> bytes:
    return framed(message.SerializeToString())


def answer(message: Message) -> RpcResponse:
    return RpcResponse(framed_message(message))


def unary(path: str, kind: type[Message], handle: Callable[[Any], Message]) -> RpcMethod:
    """Returns a method whose `handle` answers a message of type `kind` with a message."""
    return RpcMethod(path, lambda context: answer(handle(read(context, kind))))
