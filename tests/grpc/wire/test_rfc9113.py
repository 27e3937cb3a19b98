"""What RFC 9113 and RFC 7541 demand of a server, asked frame by frame, in the order of the sections."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal

import pytest
from h2.errors import ErrorCodes

from tests.grpc.client import generate
from tests.grpc.raw import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawClient,
    call,
    encode,
    frame,
    headers,
    message,
    opening,
    reset,
    settings_frame,
    window_update,
)
from tests.running_server import RunningServer

pytestmark = pytest.mark.grpc

WATCH = "/grpc.health.v1.Health/Watch"
UNKNOWN = 0x17
"""A kind of frame that nobody knows."""
MARK = b"the mark"
MOST = 1 << 14

Wrong, Calm, Size, Flow = (
    ErrorCodes.PROTOCOL_ERROR,
    ErrorCodes.ENHANCE_YOUR_CALM,
    ErrorCodes.FRAME_SIZE_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR,
)
Closed, Coding = ErrorCodes.STREAM_CLOSED, ErrorCodes.COMPRESSION_ERROR
Steps = bytes | tuple[bytes | int, ...]
"""What is sent; a number waits until the stream of that number has ended."""
Expected = tuple[Literal["connection", "stream", "answered", "alive"], object]
"""The connection ends; a stream or the connection does; this stream is answered; life goes on."""
ALIVE: Expected = ("alive", None)
ANSWERED: Expected = ("answered", 1)


def ends(*codes: ErrorCodes) -> Expected:
    return "connection", codes


def resets(*codes: ErrorCodes) -> Expected:
    return "stream", codes


REQUEST = message(generate().SerializeToString())
SAID = frame(DATA, END_STREAM, 1, REQUEST)
CALL = opening() + SAID
WATCHING = opening(1, headers(WATCH)) + frame(DATA, END_STREAM, 1, message(b""))
"""A stream that stays half closed (remote)."""
LINES = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
TYPED = [*LINES, ("content-type", "application/grpc")]
AGAIN = frame(CONTINUATION, END_HEADERS, 1, headers())
MAX = 2**31 - 1


def of_headers(*lines: tuple[str, str]) -> bytes:
    """A call with these headers alone."""
    return opening(1, encode([*lines]), END_HEADERS | END_STREAM)


def parts(*blocks: bytes) -> bytes:
    """A header block in HEADERS and CONTINUATION frames."""
    middle = b"".join(frame(CONTINUATION, 0, 1, block) for block in blocks[1:-1])
    return frame(HEADERS, 0, 1, blocks[0]) + middle + frame(CONTINUATION, END_HEADERS, 1, blocks[-1])


def coded(block: bytes) -> bytes:
    """A header block that goes on with `block`."""
    return opening(1, headers() + block)


def told(length: int) -> bytes:
    return opening(1, headers(**{"content-length": str(length)})) + SAID


FRAMES: dict[str, tuple[Steps, Expected]] = {
    "4.1 an unknown kind of frame": (frame(UNKNOWN, 0xFF, 0, b"abc"), ALIVE),
    "4.2 data of 16,384 bytes": (opening() + frame(DATA, 0, 1, REQUEST.ljust(MOST, b"\0")), ALIVE),
    "4.2 data of more": (opening() + frame(DATA, 0, 1, bytes(MOST + 1)), resets(Size)),
    "4.2 headers of more": (opening(1, bytes(MOST + 1)), ends(Size)),
    "4.3 headers of another within": (opening(flags=0) + opening(3), ends(Wrong)),
    "5.1 idle: DATA": (frame(DATA, 0, 1, b"x"), ends(Wrong)),
    "5.1 half closed: DATA": (WATCHING + frame(DATA, 0, 1, b"x"), resets(Closed)),
    "5.1 reset: DATA": (opening() + reset(1, 8) + frame(DATA, 0, 1, b"x"), resets(Closed)),
    "5.1 ended: DATA": ((CALL, 1, frame(DATA, 0, 1, b"x")), resets(Closed)),
    "5.1 ended: RST_STREAM": ((CALL, 1, reset(1, 8)), ALIVE),
    "5.1.1 a lower stream": (opening(5) + opening(3), ends(Wrong, Closed)),
    "5.1.1 a stream far up": (opening(MAX, None, END_HEADERS | END_STREAM), ("answered", MAX)),
    "5.4.2 others go on": (of_headers(("X", "y")) + opening(3, None, 5), ("answered", 3)),
    "6.1 padding": (opening() + frame(DATA, 9, 1, b"\x03" + REQUEST + bytes(3)), ANSWERED),
    "6.1 padding beyond": (opening() + frame(DATA, PADDED, 1, b"\x04abc"), ends(Wrong)),
    "6.5.2 a window of 2^31": (settings_frame({4: 2**31}), ends(Flow)),
    "6.5.3 twice the same": (settings_frame({4: 0}) + settings_frame({4: 65_535}) + CALL, ANSWERED),
    "6.8 calls go on after GOAWAY": (opening() + frame(GOAWAY, 0, 0, bytes(8)) + SAID, ANSWERED),
    "6.9.1 of a stream, too large": (opening() + window_update(1, MAX), resets(Flow)),
    "6.10 many": (parts(*(headers()[at : at + 4] for at in range(0, len(headers()), 4))) + SAID, ANSWERED),
    "6.10 behind the end": (opening() + AGAIN, ends(Wrong)),
    "8.1 trailers": (opening() + frame(DATA, 0, 1, REQUEST) + opening(1, encode({"a": "b"}), 5), ANSWERED),
    "8.1 trailers with a path": (opening() + opening(1, encode({":path": "/"}), 5), resets(Wrong)),
    "8.1.1 fewer bytes than told": (told(9999), resets(Wrong)),
    "8.1.1 as many bytes as told": (told(len(REQUEST)), ANSWERED),
    "8.2.1 a line in a value": (of_headers(*TYPED, ("a", "b\r\nc")), resets(Wrong)),
    "8.2.2 connection": (of_headers(*TYPED, ("connection", "close")), resets(Wrong)),
    "8.2.3 two cookies": (of_headers(*TYPED, ("cookie", "a=b"), ("cookie", "c=d")), ANSWERED),
    "8.3.1 no path": (of_headers(*TYPED[:2], *TYPED[3:]), resets(Wrong)),
    "10.5 settings without end": (b"".join(settings_frame({at: 0}) for at in range(100, 2000)), ends(Calm)),
    "10.5.1 without end": (opening(flags=0) + frame(CONTINUATION, 0, 1, bytes(8000)) * 3, ends(Calm)),
    "10.5.1 empty ones": (opening(flags=0) + frame(CONTINUATION, 0, 1) * 10_000, ends(Calm, Wrong)),
    "10.5.1 a bomb": (coded(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 20), ends(Calm)),
    "7541 4.2 sizes without end": (opening(1, b"\x20" * 9 + headers()), ends(Coding)),
    "7541 4.2 two sizes": (opening(1, b"\x20\x3f\xe1\x1f" + headers()) + SAID, ANSWERED),
    "7541 5.1 a number without end": (coded(b"\x00\x7f" + b"\xff" * 20), ends(Coding)),
}


@dataclass
class Seen:
    """What came of it."""

    first: int | None = None
    goaway: tuple[int, ErrorCodes] | None = None
    resets: dict[int, ErrorCodes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    pings: list[tuple[int, bytes]] = field(default_factory=list)
    is_over: bool = False

    def add(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.first = kind if self.first is None else self.first
        if kind == GOAWAY:
            last, code = struct.unpack_from(">LL", payload)
            self.goaway = last, ErrorCodes(code)
        elif kind == RST_STREAM:
            self.resets[stream] = ErrorCodes(int.from_bytes(payload, "big"))
        elif kind == PING:
            self.pings.append((flags, payload))
        if flags & END_STREAM and kind in (DATA, HEADERS):
            self.ended.add(stream)

    def meets(self, expected: Expected) -> bool:
        """An error of a stream may be one of the connection (RFC 9113, section 5.4)."""
        (of, what), ended_by = expected, self.goaway and self.goaway[1]
        if of == "connection":
            return self.is_over and ended_by in what  # type: ignore[operator]
        if of == "stream":
            return (self.resets.get(1) or ended_by) in what  # type: ignore[operator]
        is_alive = not self.is_over and self.goaway is None and (ACK, MARK) in self.pings
        return is_alive and (of == "alive" or what in self.ended)


def seen_of(port: int, steps: Steps, expected: Expected) -> Seen:
    """Sends `steps` and then a PING, and reads until that is answered."""
    seen, client = Seen(), RawClient(port)
    with closing(client.sock):
        for step in steps if isinstance(steps, tuple) else (steps,):
            if isinstance(step, bytes):
                with suppress(OSError):
                    client.send(step)
            else:
                _read(client, seen, ended=step)
        with suppress(OSError):
            client.send(frame(PING, 0, 0, MARK))
        _read(client, seen, ended=expected[1] if expected[0] == "answered" else 0, marked=True)  # type: ignore[arg-type]
        if expected[0] == "connection":
            _read(client, seen, ended=-1)
    return seen


def _read(client: RawClient, seen: Seen, ended: int, marked: bool = False) -> None:
    def lacks() -> bool:
        return bool(ended and ended not in seen.ended) or (marked and (ACK, MARK) not in seen.pings)

    while not seen.is_over and lacks():
        one = client.frame()
        if one is None:
            seen.is_over = True
        else:
            seen.add(*one)


@pytest.mark.parametrize("name", FRAMES)
def test_what_is_demanded_holds(served: RunningServer, name: str) -> None:
    steps, expected = FRAMES[name]
    seen = seen_of(served.port, steps, expected)
    assert seen.meets(expected), (expected, seen)


@pytest.mark.parametrize("greeting", [PREFACE.replace(b"SM", b"XX")])
def test_another_preface_is_not_served(served: RunningServer, greeting: bytes) -> None:
    client = RawClient(served.port, greeting + frame(PING, 0, 0, MARK))
    with closing(client.sock):
        assert not any(kind == PING for kind, *_ in client.frames())


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), opening()], ids=["a ping", "a call"])
def test_settings_come_first(served: RunningServer, first: bytes) -> None:
    client = RawClient(served.port, PREFACE + first)
    with closing(client.sock):
        assert client.reason() == Wrong


def test_a_preface_may_come_byte_by_byte(served: RunningServer) -> None:
    client = RawClient(served.port, PREFACE[:3])
    with closing(client.sock):
        for at in range(3, len(PREFACE)):
            client.send(PREFACE[at : at + 1])
        client.send(settings_frame({}), frame(PING, 0, 0, MARK))
        kinds = [kind for kind, *_ in _until(client, PING)]
    assert kinds[0] == SETTINGS
    assert kinds[-1] == PING


def test_a_goaway_tells_which_calls_were_taken(served: RunningServer) -> None:
    seen = seen_of(served.port, opening(7, headers(WATCH)) + window_update(0, 0), ends(Wrong))
    assert seen.goaway == (7, Wrong)


def test_no_more_is_sent_than_windows_allow(served: RunningServer) -> None:
    client = RawClient(served.port)
    with closing(client.sock):
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 3}), CALL, frame(PING, 0, 0, MARK))
        assert _data_until_ping(client) <= 3
        client.send(window_update(1, 4), frame(PING, 0, 0, MARK))
        first = _data_until_ping(client)
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 0}), window_update(1, 2), frame(PING, 0, 0, MARK))
        assert first <= 7 and _data_until_ping(client) <= 7 - first + 2
        client.send(window_update(1, 100_000))
        assert client.ends()["grpc-status"] == "0"


def test_the_window_of_the_connection_holds_for_all_streams(served: RunningServer) -> None:
    request = generate(max_tokens=4000, ignore_eos=True)
    client, told = RawClient(served.port), 0
    with closing(client.sock):
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 1 << 20}))
        client.send(*(call(request, stream) for stream in (1, 3)))
        while told < 65_535:
            one = client.frame()
            assert one is not None
            told += len(one[3]) if one[0] == DATA else 0
        client.send(frame(PING, 0, 0, MARK))
        assert (told, _data_until_ping(client)) == (65_535, 0)
        client.send(window_update(0, 1 << 20))
        while not all("grpc-status" in client.headers.get(stream, ()) for stream in (1, 3)):
            assert client.frame() is not None


def _until(
    client: RawClient, kind: int, payload: bytes | None = None, stream_ends: bool = False
) -> Iterator[tuple[int, int, int, bytes]]:
    """All frames up to one like this."""
    for one in client.frames():
        yield one
        if one[0] == kind and payload in (None, one[3]) and (not stream_ends or one[1] & END_STREAM):
            return


def _data_until_ping(client: RawClient) -> int:
    """Bytes of messages that come until a PING is answered."""
    return sum(len(payload) for kind, _, _, payload in _until(client, PING) if kind == DATA)
