"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse, framed

LONG: Final = 1 << 17
"""Most bytes of a message beside its texts, tensors and numbers; shorter messages are not scanned."""
LONGEST_TEXT: Final = 8 << 20
"""Most bytes of one text."""
MOST_TOKENS: Final = 1 << 18
"""Most tokens of a prompt that is longer than the context and will be cut."""
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
"""Kinds of fields on the wire (protobuf's encoding guide)."""
CONTINUED: Final = bytes(range(0x80, 0x100))
BROKEN: Final = "The message is broken."


def check_size(data: bytes, descriptor: Any, most_tokens: int, within: Slices) -> None:
    """Raises ApiError 400 for a broken message of type `descriptor`, or one too large to parse.

    It may have `most_tokens` or MOST_TOKENS packed numbers, whichever is more. Pauses `within` many fields.
    """
    if len(data) > LONG:
        try:
            _Scan(data, max(most_tokens, MOST_TOKENS), within).look(0, len(data), descriptor)
        except RecursionError:
            raise bad_request(BROKEN) from None


class _Scan:
    def __init__(self, data: bytes, most_numbers: int, within: Slices) -> None:
        self._data, self._most_numbers, self._within = data, most_numbers, within
        self._others = self._numbers = 0

    def look(self, at: int, end: int, descriptor: Any) -> None:
        """Counts what a message between two positions has beside texts, tensors and packed numbers."""
        known: Mapping[int, Any] = descriptor.fields_by_number
        while at < end:
            begin, size = at, 0
            tag, at = self._number(at)
            wire, field = tag & 7, known.get(tag >> 3)
            if wire == BYTES:
                size, at = self._number(at)
            elif wire == VARINT:
                _, at = self._number(at)
            elif wire in (EIGHT_BYTES, FOUR_BYTES):
                at += 8 if wire == EIGHT_BYTES else 4
            else:
                raise bad_request(BROKEN)
            if at + size > end:
                raise bad_request(BROKEN)
            self._others += at - begin + (size if field is None else 0)
            if self._others > LONG:
                raise bad_request(
                    f"The message has more than {LONG} bytes beside its texts, tensors and tokens."
                )
            if field is not None and size:
                self._look_into(field, at, size)
            at += size
            self._within.spend()

    def _look_into(self, field: Any, at: int, size: int) -> None:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.look(at, at + size, field.message_type)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if size > LONGEST_TEXT:
                raise bad_request(f"A text has more than {LONGEST_TEXT >> 20} MiB.", "input_text")
        elif field.type != FieldDescriptor.TYPE_BYTES:
            self._numbers += len(self._data[at : at + size].translate(None, CONTINUED))
            if self._numbers > self._most_numbers:
                raise bad_request(f"The prompt has more than {self._most_numbers} tokens.", "input_tokens")

    def _number(self, at: int) -> tuple[int, int]:
        """Returns a number, and the position behind it."""
        value = shift = 0
        while at < len(self._data) and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise bad_request(BROKEN)


engine: Any = vllm_engine_pb2
common: Any = common_pb2
SERVICE = "vllm.grpc.engine.VllmEngine"


def read(context: RequestContext, kind: type[Message], most_tokens: int = 0) -> Any:
    """Reads the message of type `kind` in the body. ApiError 400 for a broken or too large message.

    A prompt may have `most_tokens` or `MOST_TOKENS` tokens, whichever is more. May pause.
    """
    data = context.body or b""
    check_size(data, kind.DESCRIPTOR, most_tokens, Slices())
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def framed_message(message: Message) -> bytes:
    return framed(message.SerializeToString())


def answer(message: Message) -> RpcResponse:
    """Returns a response with a call's only message."""
    return RpcResponse(framed_message(message))


def unary(path: str, kind: type[Message], handle: Callable[[Any], Message]) -> RpcMethod:
    """Returns a method whose `handle` answers a message of type `kind` with a message."""
    return RpcMethod(path, lambda context: answer(handle(read(context, kind))))


def varint(number: int) -> bytes:
    """Encodes a number that is not negative, as in messages."""
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
