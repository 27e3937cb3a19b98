"""HTTP/2 frames without progress are limited, and clients that disconnect are noticed."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import gevent
import gevent.socket
import pytest
from gunicorn.config import Config

from app.core.server.gunicorn.fair_turns import ConnectionCost, FairTurns, Work
from app.core.server.gunicorn.hub_connection import FastPath
from app.core.server.gunicorn.logs import ServerLogger

pytest.importorskip("h2")

from app.core.server.http.rpc import RpcService
from app.core.server.middleware.stack import MiddlewareStack
from app.extensions.grpc.http2.budget import (
    END_STREAM,
    FRAMES_FORGIVEN,
    FRAMES_PER_ANSWER,
    MAX_FRAMES,
    MAX_FRAMES_PER_CALL,
    MIN_PROGRESS_BYTES,
    FrameBudget,
)
from app.extensions.grpc.http2.greeting import PREFACE
from app.extensions.grpc.http2.http2_connection import Http2Connection
from app.extensions.grpc.http2.protocol import ConnectionFailedError

pytestmark = pytest.mark.grpc

DATA = 0x0
PING = 0x6
PATIENCE_S = 5.0
EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
WINDOW_UPDATE = b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01"


def frames_until_failure(budget: FrameBudget, calls: int = 0) -> int:
    """Returns how many PING frames are taken."""
    for count in range(10 * MAX_FRAMES):
        try:
            budget.charge(kind=PING, flags=0, size=8, call_count=calls)
        except ConnectionFailedError:
            return count
    raise AssertionError("the budget has no end")


def test_calls_responses_and_elapsed_time_raise_the_frame_limit() -> None:
    assert frames_until_failure(FrameBudget()) == MAX_FRAMES
    assert frames_until_failure(FrameBudget(), calls=3) == MAX_FRAMES + 3 * MAX_FRAMES_PER_CALL
    answered = FrameBudget()
    answered.pay()
    assert frames_until_failure(answered) == MAX_FRAMES + FRAMES_PER_ANSWER
    spent = FrameBudget()
    frames_until_failure(spent)
    spent.forgive()
    assert frames_until_failure(spent) == FRAMES_FORGIVEN - 1, "the refused frame counts, too"


def test_frame_limit_never_exceeds_a_maximum() -> None:
    rich = FrameBudget()
    for _ in range(100_000):
        rich.pay()
        rich.forgive()
    assert frames_until_failure(rich) == 2 * MAX_FRAMES
    rested = FrameBudget()
    for _ in range(100_000):
        rested.forgive()
    assert frames_until_failure(rested) == MAX_FRAMES


@pytest.mark.parametrize(("flags", "size"), [(0, MIN_PROGRESS_BYTES), (END_STREAM, 0)])
def test_messages_and_stream_ends_do_not_use_up_the_frame_limit(flags: int, size: int) -> None:
    budget = FrameBudget()
    for _ in range(3 * MAX_FRAMES):
        budget.charge(kind=DATA, flags=flags, size=size, call_count=1)
    assert frames_until_failure(budget) == MAX_FRAMES


class NoTurns(FairTurns):
    """The loop is busy with others: no turn ever comes."""

    def schedule(self, cost: ConnectionCost, work: Work) -> list[Work]:
        return [work]


@pytest.fixture
def client_and_server() -> Iterator[tuple[socket.socket, Http2Connection]]:
    """A client, and a connection that waits for its turn with unread frames."""
    path = FastPath(
        app=None,
        log=ServerLogger(Config()),
        turns=NoTurns(),
        connections={},
        idle_s=inf,
        serve_general=lambda connection, data: None,
    )
    service = RpcService({}, 1 << 20, upgrade=print)
    path.app = cast(Any, SimpleNamespace(rpc=service, middleware=MiddlewareStack(())))
    with gevent.socket.create_server(("127.0.0.1", 0)) as listener:
        client = gevent.socket.create_connection(listener.getsockname())
        accepted, address = listener.accept()
        with closing(client):
            client.sendall(WINDOW_UPDATE * 1000)
            connection = Http2Connection(
                path, accepted, address, greeted=PREFACE + EMPTY_SETTINGS, unread=b""
            )
            yield client, connection
            connection.close()


def test_client_disconnect_is_detected_before_pending_frames_are_read(
    client_and_server: tuple[socket.socket, Http2Connection],
) -> None:
    client, connection = client_and_server
    connection.enforce_limits(time.monotonic())
    assert connection.is_open
    client.close()
    with gevent.Timeout(PATIENCE_S):
        while connection.is_open:
            connection.enforce_limits(time.monotonic())
            gevent.sleep(0.001)
    assert connection not in connection.path.connections
