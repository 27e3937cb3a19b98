"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse, framed

Proto: TypeAlias = Any
"""A message of protobuf, or a module of its messages, which ship no types."""
engine: Proto = vllm_engine_pb2
common: Proto = common_pb2
SERVICE: Final = "vllm.grpc.engine.VllmEngine"
MOST_MESSAGE_BYTES: Final = 1 << 24
"""Largest message, whatever the limit of HTTP bodies: protobuf parses it in one go."""
MOST_TEXT_BYTES: Final = 1 << 22
"""Most bytes of a message's texts and packed numbers."""
LONG: Final = 1 << 17
"""Most bytes of a message beside texts, tensors and packed numbers; shorter messages are not scanned."""
FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its kind on the wire, where that is fixed (protobuf's encoding guide)."""
VARINT, BYTES = 0, 2
BROKEN: Final = "The message is broken."


def read(context: RequestContext, kind: type[Message]) -> Proto:
    """Reads the message of type `kind` in the body. ApiError 400 if broken, or too large. May pause."""
    data = context.body or b""
    if len(data) > LONG:
        check_size(data, kind.DESCRIPTOR)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def check_size(data: bytes, kind: Proto) -> None:
    """Raises ApiError 400 for a message of type `kind` that is broken, or would take too long to parse."""
    texts, others, turns, nested = 0, 0, Slices(), [(0, len(data), kind)]
    while nested:
        begin, end, known = nested.pop()
        for number, at, size in _fields(data, begin, end):
            field = known.fields_by_number.get(number)
            others += at - begin + (size if field is None else 0)
            begin = at + size
            if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
                nested.append((at, begin, field.message_type))
            elif field is not None and field.type != FieldDescriptor.TYPE_BYTES:
                texts += size
            if others > LONG or texts > MOST_TEXT_BYTES:
                limits = f"{MOST_TEXT_BYTES} bytes of texts and tokens, and {LONG} beside them and tensors"
                raise bad_request(f"A message has at most {limits}.")
            turns.spend()


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields the number of each field between two positions, and where its content begins and how long it is.

    A single number has no content: it counts as part of the field's head.
    """
    while at < end:
        tag, at = _varint(data, at)
        size, kind = 0, tag & 7
        if kind in (VARINT, BYTES):
            size, at = _varint(data, at)
            size *= kind == BYTES
        at += FIXED.get(kind, 0)
        if kind not in (VARINT, BYTES, *FIXED) or at + size > end:
            raise bad_request(BROKEN)
        yield tag >> 3, at, size
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise bad_request(BROKEN)


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


def unary(path: str, kind: type[Message], handle: Callable[[Proto], Message]) -> RpcMethod:
    """Returns a method whose `handle` answers a message of type `kind` with a message."""
    return RpcMethod(path, lambda context: answer(handle(read(context, kind))))
