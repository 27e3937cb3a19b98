"""What RFC 9113 and RFC 7541 demand of a server, asked frame by frame, in the order of the
sections.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal

import pytest
from h2.errors import ErrorCodes

from tests.extensions.grpc.client import generate
from tests.extensions.grpc.raw import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
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

Wrong = ErrorCodes.PROTOCOL_ERROR
Calm = ErrorCodes.ENHANCE_YOUR_CALM
Size = ErrorCodes.FRAME_SIZE_ERROR
Flow = ErrorCodes.FLOW_CONTROL_ERROR
Closed = ErrorCodes.STREAM_CLOSED
Coding = ErrorCodes.COMPRESSION_ERROR
Steps = bytes | tuple[bytes | int, ...]
"""What is sent; a number waits until the stream of that number has ended."""


@dataclass(frozen=True)
class Expected:
    """`connection`:

    it ends; `stream`: it or the connection ends; `end`: answered; `life`: no more.
    """

    outcome: Literal["connection", "stream", "end", "life"]
    codes: tuple[ErrorCodes, ...] = ()
    stream: int = 1


def connection_error(*codes: ErrorCodes) -> Expected:
    return Expected("connection", codes)


def stream_error(*codes: ErrorCodes) -> Expected:
    return Expected("stream", codes)


def answered(stream: int = 1) -> Expected:
    return Expected("end", (), stream)


ALIVE = Expected("life")

REQUEST = message(generate().SerializeToString())
SAID = frame(DATA, END_STREAM, 1, REQUEST)
CALL = opening() + SAID
WATCHING = opening(1, headers(WATCH)) + frame(DATA, END_STREAM, 1, message(b""))
"""A stream that stays half closed (remote)."""
GIVEN_UP = opening() + reset(1, 8)
FINISHED = (CALL, 1)
LINES = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
TYPED = [*LINES, ("content-type", "application/grpc")]
HALF = len(headers()) // 2


def of_headers(lines: Sequence[tuple[str, str]]) -> bytes:
    return opening(1, encode(list(lines)), END_HEADERS | END_STREAM)


def with_header(name: str, value: str) -> bytes:
    return of_headers([*TYPED, (name, value)])


def without(name: str) -> bytes:
    return of_headers([line for line in TYPED if line[0] != name])


def parts(*blocks: bytes, stream: int = 1) -> bytes:
    begin = frame(HEADERS, 0, stream, blocks[0])
    middle = b"".join(frame(CONTINUATION, 0, stream, block) for block in blocks[1:-1])
    return begin + middle + frame(CONTINUATION, END_HEADERS, stream, blocks[-1])


def coded(block: bytes) -> bytes:
    """A header block that goes on with `block`."""
    return opening(1, headers() + block)


AFTER: dict[str, tuple[bytes | int, ...]]
AFTER = {"half closed": (WATCHING,), "reset": (GIVEN_UP,), "ended": FINISHED}
LATE: dict[str, tuple[bytes, Expected]] = {
    "DATA": (frame(DATA, 0, 1, b"x"), stream_error(Closed)),
    "HEADERS": (opening(), stream_error(Closed)),
    "CONTINUATION": (
        frame(CONTINUATION, END_HEADERS, 1, headers()),
        connection_error(Closed, Wrong),
    ),
    "WINDOW_UPDATE": (window_update(1, 1), ALIVE),
    "RST_STREAM": (reset(1, 8), ALIVE),
    "PRIORITY": (frame(PRIORITY, 0, 1, bytes(5)), ALIVE),
}


BAD_HEADERS = {
    **{"upper case": ("X-Upper", "a"), "a space in a name": ("a b", "a"), "no name": ("", "a")},
    **{"a colon in a name": ("a:b", "a"), "a line in a value": ("a", "b\r\nc")},
    **{"a zero in a value": ("a", "b\0c"), "a space before a value": ("a", " b")},
}
OF_HTTP_1 = {
    **{"connection": "close", "keep-alive": "5", "transfer-encoding": "chunked", "upgrade": "h2c"},
    "te": "gzip",
}


WRONG: dict[str, Steps] = {
    "4.3 GOAWAY within": opening(flags=0) + frame(GOAWAY, 0, 0, bytes(8)),
    "4.3 PRIORITY within a block": opening(flags=0) + frame(PRIORITY, 0, 1, bytes(5)),
    "4.3 an unknown frame within": opening(flags=0) + frame(UNKNOWN, 0, 1),
    "4.3 data within": opening(flags=0) + SAID,
    "5.1 idle: CONTINUATION": frame(CONTINUATION, END_HEADERS, 1, headers()),
    "5.1 idle: DATA": frame(DATA, 0, 1, b"x"),
    "5.1 idle: RST_STREAM": reset(1, 8),
    "5.1 idle: WINDOW_UPDATE": window_update(1, 1),
    "5.1.1 an even stream": opening(2),
    "6.10 behind the end": opening() + frame(CONTINUATION, END_HEADERS, 1, headers()),
    "6.6 PUSH_PROMISE": opening()
    + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(3) + b"\x02" + headers()),
    "6.8 GOAWAY of a stream": frame(GOAWAY, 0, 1, bytes(8)),
    "6.9 WINDOW_UPDATE by nothing": window_update(0, 0),
}
ANSWERED: dict[str, Steps] = {
    "5.5 an unknown frame of a stream": opening() + frame(UNKNOWN, 0, 1, b"a") + SAID,
    "6.1 an empty end": opening() + frame(DATA, 0, 1, REQUEST) + frame(DATA, END_STREAM, 1),
    "6.1 padding": opening() + frame(DATA, 9, 1, b"\x03" + REQUEST + bytes(3)),
    "6.10 CONTINUATION": parts(headers()[:HALF], headers()[HALF:]) + SAID,
    "6.10 an empty begin": parts(b"", headers()) + SAID,
    "6.10 an empty one": parts(headers()[:HALF], b"", headers()[HALF:]) + SAID,
    "6.10 many": parts(*(headers()[start : start + 4] for start in range(0, len(headers()), 4)))
    + SAID,
    "6.2 a priority": frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, bytes(4) + b"\x0f" + headers())
    + SAID,
    "6.5.2 no streams of the server": settings_frame({3: 0}) + CALL,
    "6.8 calls go on after GOAWAY": opening() + frame(GOAWAY, 0, 0, bytes(8)) + SAID,
    "7541 4.2 two sizes": opening(1, b"\x20\x3f\xe1\x1f" + headers()) + SAID,
    "8.1 trailers": opening() + frame(DATA, 0, 1, REQUEST) + opening(1, encode({"a": "b"}), 5),
    "8.1.1 as many bytes as told": opening(1, headers(**{"content-length": str(len(REQUEST))}))
    + SAID,
    "8.2.2 te of trailers": with_header("te", "trailers"),
}
WRONG_STREAMS: dict[str, Steps] = {
    "6.9 of a stream by nothing": opening() + window_update(1, 0),
    "8.1 trailers that are no end": opening() + opening(1, encode({"a": "b"})),
    "8.1 trailers with a path": opening() + opening(1, encode({":path": "/"}), 5),
    "8.1.1 fewer bytes than told": opening(1, headers(**{"content-length": "9999"})) + SAID,
    "8.1.1 more bytes than told": opening(1, headers(**{"content-length": "1"})) + SAID,
    "8.3 an unknown pseudo-header": of_headers([(":a", "b"), *TYPED]),
    "8.3 that of an answer": of_headers([(":status", "200"), *TYPED]),
    "8.3 two methods": of_headers([LINES[0], *TYPED]),
    "8.3.1 an empty path": of_headers([*LINES[:2], (":path", ""), LINES[3]]),
    "8.3.1 another host": with_header("host", "b"),
    "8.3.1 no method": without(":method"),
    "8.3.1 no path": without(":path"),
    "8.3.1 no scheme": without(":scheme"),
    "8.5 CONNECT with a path": of_headers([(":method", "CONNECT"), *TYPED[1:]]),
}
BORNE: dict[str, Steps] = {
    "3.4 settings and no more": b"",
    "4.1 an unknown kind of frame": frame(UNKNOWN, 0xFF, 0, b"abc"),
    "4.1 the reserved bit": frame(PING, 0, 1 << 31, bytes(8)),
    "4.2 data of 16,384 bytes": opening() + frame(DATA, 0, 1, REQUEST.ljust(MOST, b"\0")),
    "5.1 idle: PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "6.5 an answer to none": frame(SETTINGS, ACK, 0) * 2,
    "6.5.2 unknown settings": settings_frame({0xFF: 1, 0xFFFF: 2**32 - 1}),
    "6.8 of an unknown reason": frame(GOAWAY, 0, 0, bytes(4) + b"\0\0\xff\xff"),
}
MISCODED: dict[str, Steps] = {
    "4.3 a block that is none": opening(1, b"\xff\xff\xff\xff\xff\xff"),
    "7541 4.2 another size within": coded(b"\x20"),
    "7541 4.2 sizes without end": opening(1, b"\x20" * 9 + headers()),
    "7541 6.3 too large a table": opening(1, b"\x3f\xe2\x1f" + headers()),
}
MISSIZED: dict[str, Steps] = {
    "4.2 an unknown frame of more": frame(UNKNOWN, 0, 0, bytes(MOST + 1)),
    "4.2 headers of more": opening(1, bytes(MOST + 1)),
    "4.2 settings of more": frame(SETTINGS, 0, 0, bytes(16_386)),
    "6.5 an answer with a payload": frame(SETTINGS, ACK, 0, bytes(6)),
    "6.8 a short GOAWAY": frame(GOAWAY, 0, 0, bytes(7)),
}
CASES: dict[str, tuple[Steps, Expected]] = {
    **{name: (steps, connection_error(Wrong)) for name, steps in WRONG.items()},
    **{name: (steps, answered()) for name, steps in ANSWERED.items()},
    **{name: (steps, stream_error(Wrong)) for name, steps in WRONG_STREAMS.items()},
    **{name: (steps, ALIVE) for name, steps in BORNE.items()},
    **{name: (steps, connection_error(Coding)) for name, steps in MISCODED.items()},
    **{name: (steps, connection_error(Size)) for name, steps in MISSIZED.items()},
    "4.2 data of more": (opening() + frame(DATA, 0, 1, bytes(MOST + 1)), stream_error(Size)),
    "6.3 of a wrong size": (frame(PRIORITY, 0, 1, bytes(4)), stream_error(Size)),
    "5.1.1 a lower stream": (opening(5) + opening(3), connection_error(Wrong, Closed)),
    "5.1.1 a stream far up": (
        opening(2**31 - 1, None, END_HEADERS | END_STREAM),
        answered(2**31 - 1),
    ),
    "5.4.2 others go on": (of_headers([("X", "y")]) + opening(3, None, 5), answered(3)),
    "6.9.1 too large": (window_update(0, 2**31 - 1), connection_error(Flow)),
    "6.9.2 settings make it too large": (
        opening()
        + window_update(1, 2**31 - 1 - 65_535)
        + settings_frame({INITIAL_WINDOW_SIZE: 65_536}),
        connection_error(Flow),
    ),
    "6.5.2 a window of 2^31": (settings_frame({4: 2**31}), connection_error(Flow)),
    "6.9.1 of a stream, too large": (opening() + window_update(1, 2**31 - 1), stream_error(Flow)),
    "10.5.1 without end": (
        opening(flags=0) + frame(CONTINUATION, 0, 1, bytes(8000)) * 3,
        connection_error(Calm),
    ),
    "10.5 settings without end": (
        b"".join(settings_frame({identifier: 0}) for identifier in range(100, 2000)),
        connection_error(Calm),
    ),
    "10.5.1 a bomb": (
        coded(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 20),
        connection_error(Calm),
    ),
    "10.5.1 empty ones without end": (
        opening(flags=0) + frame(CONTINUATION, 0, 1) * 10_000,
        connection_error(Calm, Wrong),
    ),
    **{
        f"5.1 {state}: {name}": ((*steps, late), expected)
        for state, steps in AFTER.items()
        for name, (late, expected) in LATE.items()
    },
    **{
        f"8.2.1 {name}": (with_header(*header), stream_error(Wrong))
        for name, header in BAD_HEADERS.items()
    },
    **{
        f"8.2.2 {name}": (with_header(name, value), stream_error(Wrong))
        for name, value in OF_HTTP_1.items()
    },
}


@dataclass
class Seen:
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
        ended_by = self.goaway and self.goaway[1]
        if expected.outcome == "connection":
            return self.is_over and ended_by in expected.codes
        if expected.outcome == "stream":
            return (self.resets.get(expected.stream) or ended_by) in expected.codes
        is_alive = not self.is_over and self.goaway is None and (ACK, MARK) in self.pings
        return is_alive and (expected.outcome == "life" or expected.stream in self.ended)


def seen_of(port: int, steps: Steps, expected: Expected) -> Seen:
    """Sends `steps` and then a PING, and reads until that is answered."""
    seen = Seen()
    client = RawClient(port)
    with closing(client.sock):
        for step in steps if isinstance(steps, tuple) else (steps,):
            if isinstance(step, bytes):
                with suppress(OSError):
                    client.send(step)
            else:
                _read(client, seen, ended=step)
        with suppress(OSError):
            client.send(frame(PING, 0, 0, MARK))
        _read(client, seen, ended=expected.stream if expected.outcome == "end" else 0, marked=True)
        if expected.outcome == "connection":
            _read(client, seen, ended=-1)
    return seen


def _read(client: RawClient, seen: Seen, ended: int, marked: bool = False) -> None:
    def lacks() -> bool:
        return bool(ended and ended not in seen.ended) or (marked and (ACK, MARK) not in seen.pings)

    while not seen.is_over and lacks():
        received = client.frame()
        if received is None:
            seen.is_over = True
        else:
            seen.add(*received)


def test_rfc_9113_suite_has_more_than_a_hundred_cases() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize("name", CASES)
def test_server_meets_the_requirement_of_each_rfc_9113_case(
    served: RunningServer, name: str
) -> None:
    steps, expected = CASES[name]
    seen = seen_of(served.port, steps, expected)
    assert seen.meets(expected), (expected, seen)


@pytest.mark.parametrize(
    "greeting", [b"GET * HTTP/2.0\r\n\r\nSM\r\n\r\n", PREFACE.replace(b"SM", b"XX")]
)
def test_connection_with_an_invalid_preface_is_closed(
    served: RunningServer, greeting: bytes
) -> None:
    client = RawClient(served.port, greeting + frame(PING, 0, 0, MARK))
    with closing(client.sock):
        assert not any(kind == PING for kind, *_ in client.frames())


@pytest.mark.parametrize(
    "first",
    [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0), opening()],
    ids=["a ping", "an answer", "a call"],
)
def test_first_frame_other_than_settings_is_a_connection_error(
    served: RunningServer, first: bytes
) -> None:
    client = RawClient(served.port, PREFACE + first)
    with closing(client.sock):
        assert client.reason() == Wrong


def test_oversized_frame_is_rejected_by_its_header(served: RunningServer) -> None:
    client = RawClient(served.port)
    with closing(client.sock):
        client.send(struct.pack(">BHBBL", 1, 0, DATA, 0, 1))
        assert client.reason() == Size


def test_preface_may_arrive_byte_by_byte(served: RunningServer) -> None:
    client = RawClient(served.port, PREFACE[:3])
    with closing(client.sock):
        for position in range(3, len(PREFACE)):
            client.send(PREFACE[position : position + 1])
        client.send(settings_frame({}), frame(PING, 0, 0, MARK))
        kinds = [kind for kind, *_ in _until(client, PING)]
    assert kinds[0] == SETTINGS
    assert kinds[-1] == PING


def test_settings_and_pings_are_acknowledged_in_order(
    served: RunningServer,
) -> None:
    client = RawClient(served.port)
    with closing(client.sock):
        client.send(settings_frame({4: 1}), frame(PING, 0, 0, b"12345678"), settings_frame({4: 2}))
        client.send(frame(PING, 0, 0, MARK))
        answers = [
            (kind, payload)
            for kind, flags, _, payload in _until(client, PING, MARK)
            if kind in (SETTINGS, PING) and flags & ACK
        ]
    assert answers == [
        (SETTINGS, b""),
        (SETTINGS, b""),
        (PING, b"12345678"),
        (SETTINGS, b""),
        (PING, MARK),
    ]


def test_goaway_names_the_last_accepted_call(served: RunningServer) -> None:
    seen = seen_of(
        served.port, opening(7, headers(WATCH)) + window_update(0, 0), connection_error(Wrong)
    )
    assert seen.goaway == (7, Wrong)


def test_server_sends_no_more_than_the_flow_control_windows_allow(served: RunningServer) -> None:
    client = RawClient(served.port)
    with closing(client.sock):
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 3}), CALL, frame(PING, 0, 0, MARK))
        assert _data_until_ping(client) <= 3
        client.send(window_update(1, 4), frame(PING, 0, 0, MARK))
        first = _data_until_ping(client)
        client.send(
            settings_frame({INITIAL_WINDOW_SIZE: 0}), window_update(1, 2), frame(PING, 0, 0, MARK)
        )
        assert first <= 7 and _data_until_ping(client) <= 7 - first + 2
        client.send(window_update(1, 100_000))
        assert client.ends()["grpc-status"] == "0"


def test_connection_window_applies_to_all_streams_together(served: RunningServer) -> None:
    request = generate(max_tokens=4000, ignore_eos=True)
    client = RawClient(served.port)
    received_bytes = 0
    with closing(client.sock):
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 1 << 20}))
        client.send(*(call(request, stream) for stream in (1, 3)))
        while received_bytes < 65_535:
            received = client.frame()
            assert received is not None
            received_bytes += len(received[3]) if received[0] == DATA else 0
        client.send(frame(PING, 0, 0, MARK))
        assert (received_bytes, _data_until_ping(client)) == (65_535, 0)
        client.send(window_update(0, 1 << 20))
        while not all("grpc-status" in client.headers.get(stream, ()) for stream in (1, 3)):
            assert client.frame() is not None


def test_large_messages_are_split_into_frames_of_the_allowed_size(served: RunningServer) -> None:
    request = generate(stream=False, max_tokens=4000, ignore_eos=True, logprobs=5)
    client = RawClient(served.port)
    with closing(client.sock):
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 1 << 24}), window_update(0, 1 << 24))
        client.send(call(request))
        sizes = [
            len(received[3])
            for received in _until(client, HEADERS, stream_ends=True)
            if received[0] == DATA
        ]
    assert sum(sizes) > max(sizes) == MOST


def _until(
    client: RawClient, kind: int, payload: bytes | None = None, stream_ends: bool = False
) -> Iterator[tuple[int, int, int, bytes]]:
    for received in client.frames():
        yield received
        if (
            received[0] == kind
            and payload in (None, received[3])
            and (not stream_ends or received[1] & END_STREAM)
        ):
            return


def _data_until_ping(client: RawClient) -> int:
    """Bytes of messages that come until a PING is answered."""
    return sum(len(payload) for kind, _, _, payload in _until(client, PING) if kind == DATA)
