"""The start of an HTTP/2 connection: no state before the first call, or for a client that left."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf

import gevent
import gevent.socket
import pytest
from gunicorn.config import Config

from app.core.server.gunicorn.fair_turns import FairTurns
from app.core.server.gunicorn.hub_connection import FastPath
from app.core.server.gunicorn.logs import ServerLogger

pytest.importorskip("h2")

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RemoteSettingsChanged, WindowUpdated

from app.extensions.grpc.http2.greeting import MAX_GREETING_BYTES, Http2Greeting
from app.extensions.grpc.http2.limits import server_preface
from app.extensions.grpc.http2.protocol import ServerProtocol
from tests.extensions.grpc import raw
from tests.extensions.grpc.raw import PREFACE, frame, opening, settings_frame, window_update

pytestmark = pytest.mark.grpc

MAX_MESSAGE_BYTES = 1 << 20
START = PREFACE + settings_frame({})
SETTINGS_ACK = frame(raw.SETTINGS, raw.ACK, 0)
PING = frame(raw.PING, 0, 0, b"12345678")
PING_ACK = frame(raw.PING, raw.ACK, 0, b"12345678")
PATIENCE_S = 5.0
FOREVER_S = 3600.0


@dataclass
class Greeted:
    """A client and its greeting; `taken_over` has the greeting once a frame needs state."""

    client: gevent.socket.socket
    greeting: Http2Greeting
    taken_over: list[Http2Greeting] = field(default_factory=list)


@contextmanager
def greeted(data: bytes, client_leaves: bool = False) -> Iterator[Greeted]:
    """A client that sends `data`, and that may disconnect right after."""
    path = FastPath(
        app=None,
        log=ServerLogger(Config()),
        turns=FairTurns(),
        connections={},
        idle_s=inf,
        serve_general=print,
        client_timeout_s=FOREVER_S,
    )
    taken_over: list[Http2Greeting] = []
    with gevent.socket.create_server(("127.0.0.1", 0)) as listener:
        client = gevent.socket.create_connection(listener.getsockname())
        accepted, address = listener.accept()
        if client_leaves:
            client.close()
            gevent.sleep(0.01)
        with closing(client), closing(accepted), gevent.Timeout(PATIENCE_S):
            greeting = Http2Greeting(
                path,
                accepted,
                address,
                data,
                max_message_bytes=MAX_MESSAGE_BYTES,
                take_over=taken_over.append,
            )
            yield Greeted(client, greeting, taken_over)
            greeting.close()
            assert not path.connections


def received(client: gevent.socket.socket, size: int) -> bytes:
    """Returns the next `size` bytes."""
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, "the server has closed the connection"
        data += part
    return data


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (START, SETTINGS_ACK),
        (START + SETTINGS_ACK, SETTINGS_ACK),
        (START + window_update(0, 1 << 20), SETTINGS_ACK),
        (START + PING + settings_frame({4: 1 << 20}), SETTINGS_ACK + PING_ACK + SETTINGS_ACK),
    ],
)
def test_first_frames_are_answered_without_the_state_of_a_connection(
    data: bytes, answer: bytes
) -> None:
    with greeted(data) as start:
        expected = server_preface(MAX_MESSAGE_BYTES) + answer
        assert received(start.client, len(expected)) == expected
        assert start.taken_over == []
        assert start.greeting.release()[:2] == (data, b"")


@pytest.mark.parametrize(
    "following",
    [
        opening(),
        settings_frame({2: 2}),
        settings_frame({4: 1 << 31}),
        settings_frame({5: 1}),
        frame(raw.SETTINGS, 0, 0, b"12345"),
        frame(raw.SETTINGS, 0, 1),
        frame(raw.PING, 0, 0, b"1234"),
        frame(raw.PING, raw.ACK, 0, b"12345678"),
        window_update(0, 0),
        window_update(0, (1 << 31) - 1),
        window_update(1, 1),
        frame(raw.GOAWAY, 0, 0, bytes(8)),
        frame(raw.DATA, 0, 0, bytes(1 << 14)),
        PING * (MAX_GREETING_BYTES // len(PING)),
    ],
)
def test_frame_that_needs_state_is_left_to_the_connection(following: bytes) -> None:
    with greeted(START + following) as start:
        while not start.taken_over:
            gevent.sleep(0)
        answered, unread, refuses_calls = start.greeting.release()
    assert answered + unread == START + following
    assert len(answered) <= MAX_GREETING_BYTES and unread
    assert not refuses_calls


def test_client_that_has_left_is_not_taken_over() -> None:
    with greeted(START + opening(), client_leaves=True) as start:
        while start.greeting.is_open:
            gevent.sleep(0)
        assert start.taken_over == []


def test_bytes_may_arrive_one_by_one() -> None:
    data = START + PING
    with greeted(b"") as start:
        for index in range(len(data)):
            start.client.sendall(data[index : index + 1])
            gevent.sleep(0)
        expected = server_preface(MAX_MESSAGE_BYTES) + SETTINGS_ACK + PING_ACK
        assert received(start.client, len(expected)) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + settings_frame({}),
        PREFACE + PING,
        PREFACE + SETTINGS_ACK,
    ],
)
def test_connection_with_a_wrong_start_ends_with_an_error(data: bytes) -> None:
    with greeted(data) as start:
        answer = b"".join(iter(partial(start.client.recv, 1000), b""))
        assert not start.greeting.is_open
    goaway = answer.removeprefix(server_preface(MAX_MESSAGE_BYTES))
    _, _, kind, _, _ = raw.HEAD.unpack_from(goaway)
    _, error_code = struct.unpack_from(">LL", goaway, raw.HEAD.size)
    assert (kind, error_code) == (raw.GOAWAY, ErrorCodes.PROTOCOL_ERROR)


def test_preface_of_the_server_announces_what_its_protocol_enforces() -> None:
    client = H2Connection(H2Configuration())
    client.initiate_connection()
    events = client.receive_data(server_preface(MAX_MESSAGE_BYTES))
    protocol = ServerProtocol(MAX_MESSAGE_BYTES, START)
    [settings] = [event for event in events if isinstance(event, RemoteSettingsChanged)]
    for code, change in settings.changed_settings.items():
        assert protocol.local_settings[code] == change.new_value
    assert protocol.local_settings.initial_window_size == client.remote_settings.initial_window_size
    assert any(isinstance(event, WindowUpdated) for event in events)
    assert client.outbound_flow_control_window == protocol.inbound_flow_control_window
