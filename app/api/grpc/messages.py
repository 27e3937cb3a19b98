"""The messages of the packages that vLLM itself uses, and how they are read.

They are made by protoc: their fields have no types that a checker would know.
"""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.api.grpc.sizes import check_size
from app.clock.pause import Slices
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.rpc import RpcResponse, framed

engine: Any = vllm_engine_pb2
common: Any = common_pb2
SERVICE = "vllm.grpc.engine.VllmEngine"


class Message(Protocol):
    """Any message."""

    def SerializeToString(self) -> bytes: ...


def read(context: RequestContext, kind: Any, most_tokens: int = 0) -> Any:
    """The message in the body, of type `kind`. ApiError 400 for what is none, or has too much in it.

    A prompt may have `most_tokens`, and some more. May pause.
    """
    data = context.body or b""
    check_size(data, kind.DESCRIPTOR.name, most_tokens, Slices())
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def answer(message: Message) -> RpcResponse:
    """A call's only message."""
    return RpcResponse(framed(message.SerializeToString()))


def varint(number: int) -> bytes:
    """A number that is not negative, as messages have it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
