"""Messages of the packages that vLLM itself uses: reading and writing.

protoc makes the messages: their fields have no types that a checker would know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.rpc import RpcResponse, framed

LONG: Final = 1 << 17
"""Most bytes of a message beside its texts, tensors and tokens; shorter messages are not scanned."""
MOST_TOKENS: Final = 1 << 18
"""Most tokens of a prompt that is longer than the context and will be cut."""
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
CONTINUED: Final = bytes(range(0x80, 0x100))

Fields = Mapping[int, "Fields | str"]
LONGEST_TEXT: Final = 8 << 20
"""Most bytes of one text."""
TEXT, TENSOR_BYTES, TOKENS = "text", "tensor", "tokens"
TOKENIZED: Final[Fields] = {1: TEXT, 2: TOKENS}
TENSOR: Final[Fields] = {1: TENSOR_BYTES}
MEDIA: Final[Fields] = {2: TENSOR, 3: {2: TENSOR}}
CONSTRAINTS: Final[Fields] = {16: TEXT, 17: TEXT, 18: TEXT, 19: TEXT}
LARGE: Final[Mapping[str, Fields]] = {
    "GenerateRequest": {2: TOKENIZED, 3: TEXT, 4: CONSTRAINTS, 7: MEDIA, 11: MEDIA},
    "EmbedRequest": {2: TOKENIZED},
}
"""Large fields of each message, by number, with their contents."""


def check_size(data: bytes, name: str, most_tokens: int, within: Slices) -> None:
    """Raises ApiError 400 for a broken message `name`, or one too large to parse.

    Pauses `within` many fields.
    """
    if len(data) > LONG:
        _Scan(data, max(most_tokens, MOST_TOKENS), within).look(0, len(data), LARGE.get(name, {}))


class _Scan:
    def __init__(self, data: bytes, most_tokens: int, within: Slices) -> None:
        self._data, self._most_tokens, self._within = data, most_tokens, within
        self._others = self._tokens = 0

    def look(self, at: int, end: int, fields: Fields) -> None:
        while at < end:
            begin = at
            tag, at = self._number(at)
            inner, size = fields.get(tag >> 3), 0
            if tag & 7 == BYTES:
                size, at = self._number(at)
            elif tag & 7 == VARINT:
                _, at = self._number(at)
            elif tag & 7 in (EIGHT_BYTES, FOUR_BYTES):
                at += 8 if tag & 7 == EIGHT_BYTES else 4
            else:
                raise _no_message()
            if at + size > end:
                raise _no_message()
            self._count(at - begin + (size if inner is None else 0))
            if inner == TEXT and size > LONGEST_TEXT:
                raise bad_request(f"A text has more than {LONGEST_TEXT >> 20} MiB.", "input_text")
            if inner == TOKENS:
                self._count_tokens(self._data[at : at + size])
            elif isinstance(inner, Mapping):
                self.look(at, at + size, inner)
            at += size
            self._within.spend()

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
        raise _no_message()

    def _count(self, size: int) -> None:
        self._others += size
        if self._others > LONG:
            raise bad_request(f"The message has more than {LONG} bytes beside its texts, tensors and tokens.")

    def _count_tokens(self, packed: bytes) -> None:
        self._tokens += len(packed.translate(None, CONTINUED))
        if self._tokens > self._most_tokens:
            raise bad_request(f"The prompt has more than {self._most_tokens} tokens.", "input_tokens")


def _no_message() -> ApiError:
    return bad_request("The message is broken.")


engine: Any = vllm_engine_pb2
common: Any = common_pb2
SERVICE = "vllm.grpc.engine.VllmEngine"


def read(context: RequestContext, kind: Any, most_tokens: int = 0) -> Any:
    """Reads the message of type `kind` in the body. ApiError 400 for a broken or too large message.

    A prompt may have `most_tokens` or `MOST_TOKENS` tokens, whichever is more. May pause.
    """
    data = context.body or b""
    check_size(data, kind.DESCRIPTOR.name, most_tokens, Slices())
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def framed_message(message: Any) -> bytes:
    """Returns a message as bytes, behind their length."""
    return framed(message.SerializeToString())


def answer(message: Any) -> RpcResponse:
    """Returns a response with a call's only message."""
    return RpcResponse(framed_message(message))


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
