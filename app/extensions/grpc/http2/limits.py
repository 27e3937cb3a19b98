"""Limits of HTTP/2 connections, and the frames that announce them; imports no package."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

from app.core.server.http.rpc import PREFIX_BYTES

if TYPE_CHECKING:
    from config.sections.server import ServerSettings

FRAME_HEAD = Struct(">BHBBL")
"""High and low part of the payload's size, kind, flags and stream (RFC 9113, section 4.1)."""
HEAD_BYTES = FRAME_HEAD.size
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 6, 7, 8, 9
"""Kinds of frames (RFC 9113, section 6)."""
ACK = 0x1
MAX_FRAME_BYTES = 1 << 14
"""Largest payload of a frame by default, in bytes, for both sides."""
MAX_CALLS = 1 << 14
"""Most concurrent calls on one connection."""
MAX_HEADER_BYTES = 1 << 14
"""Most bytes of a call's encoded headers."""
MAX_MESSAGE_BYTES: Final = 1 << 24
"""Largest message, whatever the limit of HTTP bodies: protobuf parses it in one go."""
WINDOW_BYTES = 1 << 22
"""Flow-control window for requests on one connection, in bytes."""
INITIAL_WINDOW_BYTES = 65_535
"""Initial flow-control window of a connection, in bytes (RFC 9113, section 6.9.2)."""
MAX_WINDOW_BYTES = 2**31 - 1
"""Largest flow-control window, in bytes."""
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6
ENABLE_CONNECT_PROTOCOL = 8
"""Identifiers of settings (RFC 9113, section 6.5.2; RFC 8441, section 3)."""
SETTING = Struct(">HL")
"""Identifier and value of a setting."""


def message_limit(server: ServerSettings) -> int:
    """Returns the size of the largest message, in bytes."""
    return min(MAX_MESSAGE_BYTES, server.max_request_body_size_mb << 20)


def announced_settings(max_message_bytes: int) -> Mapping[int, int]:
    """Returns the server's settings that differ from HTTP/2's defaults, by their identifiers."""
    return {
        MAX_CONCURRENT_STREAMS: MAX_CALLS,
        INITIAL_WINDOW_SIZE: max_message_bytes + PREFIX_BYTES + WINDOW_BYTES,
        MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """Returns a short frame of the whole connection."""
    head = FRAME_HEAD.pack(0, len(payload), kind, flags, 0)
    return head + payload


def server_preface(max_message_bytes: int) -> bytes:
    """Returns the server's first frames: its settings, and its window for requests."""
    settings = b"".join(
        SETTING.pack(identifier, value)
        for identifier, value in announced_settings(max_message_bytes).items()
    )
    increment = WINDOW_BYTES - INITIAL_WINDOW_BYTES
    return frame(SETTINGS, 0, settings) + frame(WINDOW_UPDATE, 0, increment.to_bytes(4, "big"))


def are_valid_settings(payload: bytes) -> bool:
    """Returns whether each setting has a value that RFC 9113, section 6.5.2, permits."""
    if len(payload) % SETTING.size:
        return False
    for identifier, value in SETTING.iter_unpack(payload):
        if identifier in (ENABLE_PUSH, ENABLE_CONNECT_PROTOCOL) and value > 1:
            return False
        if identifier == INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            return False
        if identifier == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
            return False
    return True
