"""Messages of gRPC: modules that protoc generated, reading with limits, and framing.

The fields of generated messages have no types that a checker would know.
"""

from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.core.base.clock.pause import Slices
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.rpc import framed

Proto: TypeAlias = Any
"""A message of protobuf, or a module of its messages, which ship no types."""
engine: Proto = vllm_engine_pb2
common: Proto = common_pb2

MAX_OTHER_BYTES: Final = 1 << 22
"""Most bytes of a message besides its tensors."""
MAX_FIELDS: Final = 1 << 14
"""Most fields of a message, nested ones included; packed numbers are one field."""
SCANNED_BYTES: Final = 1 << 15
"""Larger messages are scanned; smaller ones cannot have too many fields."""
WIRE_VARINT: Final = 0
WIRE_BYTES: Final = 2
FIXED_BYTES: Final = {1: 8, 5: 4}
"""Size of a field by its wire type, where the type fixes the size (protobuf's encoding guide)."""


def read(context: RequestContext, message_type: type[Message]) -> Proto:
    """Reads the message in the body. May pause.

    Raises:
        ApiError: 400 for a broken message, or one that is too large.
    """
    data = context.body or b""
    if len(data) > SCANNED_BYTES:
        check_size(data, message_type.DESCRIPTOR)
    try:
        return message_type.FromString(data)
    except DecodeError:
        name = message_type.DESCRIPTOR.full_name
        raise bad_request(f"The message is not a valid {name}.") from None


def check_size(data: bytes, descriptor: Proto) -> None:
    """Raises ApiError 400 for a message that is broken, or would take too long to parse."""
    scan = SizeScan(data, descriptor)
    scan.run()
    if scan.fields > MAX_FIELDS or scan.other_bytes > MAX_OTHER_BYTES:
        raise bad_request(
            f"A message can have at most {MAX_FIELDS} fields "
            f"and, not counting tensors, at most {MAX_OTHER_BYTES} bytes."
        )


class SizeScan:
    """Counts the fields of a message, nested ones included, and its bytes besides tensors."""

    def __init__(self, data: bytes, descriptor: Proto) -> None:
        self.fields = 0
        self.other_bytes = len(data)
        self._data = data
        self._slices = Slices()
        self._spans: list[tuple[int, int, Proto]] = [(0, len(data), descriptor)]
        """Start, end and descriptor of messages that are still to scan."""

    def run(self) -> None:
        """Scans all messages, or more than `MAX_FIELDS` fields. May pause.

        Raises:
            ApiError: 400 for a broken message.
        """
        while self._spans and self.fields <= MAX_FIELDS:
            position, end, descriptor = self._spans.pop()
            while position < end and self.fields <= MAX_FIELDS:
                position = self._scan_field(position, end, descriptor)
                self.fields += 1
                self._slices.spend()

    def _scan_field(self, position: int, end: int, descriptor: Proto) -> int:
        """Returns the position after the field at `position`."""
        tag, position = _varint(self._data, position)
        wire_type = tag & 7
        if wire_type == WIRE_VARINT:
            _, position = _varint(self._data, position)
            size = 0
        elif wire_type == WIRE_BYTES:
            size, position = _varint(self._data, position)
        elif wire_type in FIXED_BYTES:
            size = FIXED_BYTES[wire_type]
        else:
            raise bad_request("The message is malformed.")
        if position + size > end:
            raise bad_request("The message is malformed.")
        field = descriptor.fields_by_number.get(tag >> 3)
        if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            self._spans.append((position, position + size, field.message_type))
        elif field is not None and field.type == FieldDescriptor.TYPE_BYTES:
            self.other_bytes -= size
        return position + size


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Returns the number at `start`, and the position after it."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, start + place + 1
    raise bad_request("The message is malformed.")


def framed_message(message: Message) -> bytes:
    """Returns a message with its prefix."""
    return framed(message.SerializeToString())
