"""A client of HTTP/2 that sends what it likes, frame by frame."""

import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from h2.errors import ErrorCodes
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

from tests.extensions.grpc.client import LIMIT_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
(
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
) = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20
INITIAL_WINDOW_SIZE = 4
HEAD = struct.Struct(">BHBBL")
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream and payload."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings_frame(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *item) for item in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def encode(headers: Mapping[str, str] | list[tuple[str, str]]) -> bytes:
    """A header block that adds nothing to the server's table."""
    items = headers.items() if isinstance(headers, Mapping) else headers
    fields = [NeverIndexedHeaderTuple(*(text.encode("latin-1") for text in item)) for item in items]
    block: bytes = Encoder().encode(fields, huffman=False)
    return block


def headers(path: str = GENERATE, **additional: str) -> bytes:
    usual = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
    return encode({**usual, "content-type": "application/grpc", **additional})


def opening(stream: int = 1, block: bytes | None = None, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, headers() if block is None else block)


def message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def call(request: Any, stream: int = 1, block: bytes | None = None) -> bytes:
    body = message(request.SerializeToString())
    return opening(stream, block) + frame(DATA, END_STREAM, stream, body)


class RawClient:
    """A connection. `headers` has those of each stream that came last."""

    def __init__(self, port: int, greeting: bytes = PREFACE + settings_frame({})) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self.sock.sendall(greeting)
        self.headers: dict[int, dict[str, str]] = {}
        self._data = b""
        self._decoder = Decoder()

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        while True:
            if len(self._data) >= HEAD.size:
                high, low, kind, flags, stream = HEAD.unpack_from(self._data)
                end = HEAD.size + (high << 16 | low)
                if len(self._data) >= end:
                    payload = self._data[HEAD.size : end]
                    self._data = self._data[end:]
                    if kind == HEADERS:
                        self.headers[stream] = dict(self._decoder.decode(payload))
                    return kind, flags, stream, payload
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._data += data

    def frames(self) -> Iterator[Frame]:
        while (received := self.frame()) is not None:
            yield received

    def until_reset(self) -> Iterator[Frame]:
        for received in self.frames():
            yield received
            if received[0] == RST_STREAM:
                return

    def reason(self) -> ErrorCodes | None:
        error_code = None
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                error_code = ErrorCodes(struct.unpack_from(">L", payload, 4)[0])
        return error_code

    def reason_of(self, stream: int) -> ErrorCodes:
        for kind, _, number, payload in self.frames():
            if kind == RST_STREAM and number == stream:
                return ErrorCodes(int.from_bytes(payload, "big"))
        raise AssertionError("the connection ended first")

    def ends(self, stream: int = 1) -> dict[str, str]:
        for kind, flags, number, _ in self.frames():
            if number == stream and kind == HEADERS and flags & END_STREAM:
                return self.headers[stream]
        raise AssertionError("the connection ended first")
