"""Frames of HTTP/2 (RFC 9113, section 4 and 6): their kinds, their heads, and what an end says."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client begins with that knows that we speak HTTP/2."""

HEAD = Struct(">BHBBL")
head = HEAD.pack
"""The head of a frame: the high and the low part of its payload's size, kind, flags and stream."""
HEAD_BYTES = 9
MOST_FRAME_BYTES = 1 << 14
"""Of a payload: what both sides may send unless they say otherwise, which we do not."""
WINDOW = 65_535
"""Bytes that may be sent before the other side says more, as long as it has not said how many."""
MOST_WINDOW = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

END_STREAM = ACK = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
SETTING = Struct(">HL")
NUMBER = Struct(">L")
PRIORITY_BYTES = 5


class Reason(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionFailed(Exception):
    """The client breaks the protocol, or asks too much: the connection ends."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


SIZES = {PRIORITY: PRIORITY_BYTES, RST_STREAM: NUMBER.size, WINDOW_UPDATE: NUMBER.size, PING: 8}
"""Of payloads that have only one."""
OF_STREAMS = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION))
OF_CONNECTIONS = frozenset((SETTINGS, PING, GOAWAY))


def check(kind: int, flags: int, stream: int, size: int) -> None:
    """ConnectionFailed for a frame that is never right, whatever came before."""
    if size > MOST_FRAME_BYTES:
        raise ConnectionFailed(Reason.FRAME_SIZE_ERROR, "a frame is too long")
    if size != SIZES.get(kind, size) or kind == SETTINGS and flags & ACK and size:
        raise ConnectionFailed(Reason.FRAME_SIZE_ERROR, "a frame of a wrong size")
    if kind in (OF_CONNECTIONS if stream else OF_STREAMS):
        raise ConnectionFailed(Reason.PROTOCOL_ERROR, "a frame of no stream, or of one and of all")
    if kind == PUSH_PROMISE:
        raise ConnectionFailed(Reason.PROTOCOL_ERROR, "clients promise nothing")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def data_frames(stream: int, data: bytes) -> bytes:
    """`data` in as few frames as it takes."""
    if len(data) <= MOST_FRAME_BYTES:
        return frame(DATA, 0, stream, data)
    parts = range(0, len(data), MOST_FRAME_BYTES)
    return b"".join([frame(DATA, 0, stream, data[at : at + MOST_FRAME_BYTES]) for at in parts])


def settings_frame(values: dict[int, int]) -> bytes:
    """What we tell a client of ourselves."""
    return frame(SETTINGS, 0, 0, b"".join([SETTING.pack(*item) for item in values.items()]))


def read_settings(payload: bytes) -> dict[int, int]:
    """What a client tells of itself. ConnectionFailed for what is no settings."""
    if len(payload) % SETTING.size:
        raise ConnectionFailed(Reason.FRAME_SIZE_ERROR, "settings of a wrong size")
    return dict(SETTING.iter_unpack(payload))


def window_update(stream: int, size: int) -> bytes:
    """The client may send so many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size))


def reset(stream: int, reason: Reason) -> bytes:
    """The end of a stream, at once."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(reason))


def goaway(last: int, reason: Reason, text: str = "") -> bytes:
    """No stream after `last` is served."""
    return frame(GOAWAY, 0, 0, NUMBER.pack(last) + NUMBER.pack(reason) + text.encode()[:200])


def unpadded(flags: int, payload: bytes, has_priority: bool = False) -> bytes:
    """What is in the payload of a DATA or HEADERS frame. ConnectionFailed where there is too little."""
    begin, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFailed(Reason.FRAME_SIZE_ERROR, "padding without a length")
        begin, end = 1, end - payload[0]
    if has_priority and flags & HAS_PRIORITY:
        begin += PRIORITY_BYTES
    if begin > end:
        raise ConnectionFailed(Reason.PROTOCOL_ERROR, "more padding than there is room")
    return payload[begin:end]
