"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse, framed

engine: Any = vllm_engine_pb2
common: Any = common_pb2
SERVICE: Final = "vllm.grpc.engine.VllmEngine"
LONG: Final = 1 << 17
"""Most bytes of a message beside its texts, tensors and numbers; shorter messages are not scanned."""
LONGEST_TEXT: Final = 8 << 20
"""Most bytes of one text."""
MOST_TOKENS: Final = 1 << 18
"""Most tokens of a prompt that is longer than the context and will be cut."""
FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its kind on the wire, where that is fixed (protobuf's encoding guide)."""
VARINT, BYTES = 0, 2
CONTINUED: Final = bytes(range(0x80, 0x100))
BROKEN: Final = "The message is broken."


def read(context: RequestContext, kind: type[Message], most_tokens: int = 0) -> Any:
    """Reads the message of type `kind` in the body. ApiError 400 for a broken or too large message.

    A prompt may have `most_tokens` or `MOST_TOKENS` tokens, whichever is more. May pause.
    """
    data = context.body or b""
    if len(data) > LONG:
        check_size(data, kind.DESCRIPTOR, max(most_tokens, MOST_TOKENS))
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def check_size(data: bytes, kind: Any, most_numbers: int = MOST_TOKENS) -> None:
    """Raises ApiError 400 for a message of type `kind` that is broken, or would take too long to parse."""
    others, numbers, turns, nested = 0, 0, Slices(), [(0, len(data), kind)]
    while nested:
        begin, end, known = nested.pop()
        for number, at, size in _fields(data, begin, end):
            field = known.fields_by_number.get(number)
            others += at - begin + (0 if field is not None else size)
            begin = at + size
            if others > LONG:
                raise bad_request(f"Only {LONG} bytes of a message may be no text, tensor or token.")
            if field is None or field.type == FieldDescriptor.TYPE_BYTES or not size:
                pass
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                nested.append((at, begin, field.message_type))
            elif field.type != FieldDescriptor.TYPE_STRING:
                numbers += len(data[at:begin].translate(None, CONTINUED))
            elif size > LONGEST_TEXT:
                raise bad_request(f"A text has more than {LONGEST_TEXT >> 20} MiB.", "input_text")
            turns.spend()
    if numbers > most_numbers:
        raise bad_request(f"The prompt has more than {most_numbers} tokens.", "input_tokens")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields the number of each field between two positions, and where its content begins and how long it is.

    The content of a single number counts as part of the field's head.
    """
    while at < end:
        size = 0
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind in (VARINT, BYTES):
            size, at = _varint(data, at)
        elif kind not in FIXED:
            raise bad_request(BROKEN)
        size = size if kind == BYTES else 0
        at += FIXED.get(kind, 0)
        if at + size > end:
            raise bad_request(BROKEN)
        yield tag >> 3, at, size
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
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


def unary(path: str, kind: type[Message], handle: Callable[[Any], Message]) -> RpcMethod:
    """Returns a method whose `handle` answers a message of type `kind` with a message."""
    return RpcMethod(path, lambda context: answer(handle(read(context, kind))))
