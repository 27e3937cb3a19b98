"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.route import framed

Proto: TypeAlias = Any
"""A message of protobuf, or a module of its messages, which ship no types."""
engine: Proto = vllm_engine_pb2
common: Proto = common_pb2
SERVICE: Final = "vllm.grpc.engine.VllmEngine"
MOST_MESSAGE_BYTES: Final = 1 << 24
"""Largest message, whatever the limit of HTTP bodies: protobuf parses it in one go."""
MOST_OTHER_BYTES: Final = 1 << 22
"""Most bytes of a message beside its tensors."""
MOST_FIELDS: Final = 1 << 14
"""Most fields of a message, nested ones included; packed numbers are one field."""
LONG: Final = 1 << 15
"""Size in bytes of a message that cannot have too many fields, and is not scanned."""
FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its kind on the wire, where that is fixed (protobuf's encoding guide)."""
VARINT, BYTES = 0, 2


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
    fields, others, turns, nested = 0, len(data), Slices(), [(0, len(data), kind)]
    while nested and fields <= MOST_FIELDS:
        at, end, known = nested.pop()
        while at < end and fields <= MOST_FIELDS:
            tag, at = _varint(data, at)
            field, wire = known.fields_by_number.get(tag >> 3), tag & 7
            size = FIXED.get(wire, 0)
            if wire in (VARINT, BYTES):
                size, at = _varint(data, at)
                size *= wire == BYTES
            if wire not in (VARINT, BYTES, *FIXED) or at + size > end:
                raise bad_request("The message is broken.")
            if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
                nested.append((at, at + size, field.message_type))
            elif field is not None and field.type == FieldDescriptor.TYPE_BYTES:
                others -= size
            at, fields = at + size, fields + 1
            turns.spend()
    if fields > MOST_FIELDS or others > MOST_OTHER_BYTES:
        limits = f"{MOST_FIELDS} fields, and {MOST_OTHER_BYTES} bytes beside tensors"
        raise bad_request(f"A message has at most {limits}.")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise bad_request("The message is broken.")


def framed_message(message: Message) -> bytes:
    return framed(message.SerializeToString())
