"""A chunked body on its way to a real socket: pieces of a turn together, slices for who lags, an end for who
does not read.
"""

from __future__ import annotations

import gc
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import gevent.socket
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.http.connection import Connection
from app.serving.http.stream import LAST_CHUNK, StreamTransport, WriteBatcher
from tests.api.served_stream import unframed

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
PIECE = b"<piece>" * 100
PATIENCE_S = 5.0
QUICK_S = 0.05


class Source:
    """Keeps pieces while the stream lags, and gives one of them a slice."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.over = False
        self.slices = 0
        self.left = 0
        self.transport: StreamTransport | None = None
        self.error: Exception | None = None

    def put(self, piece: bytes, last: bool = False) -> None:
        """What an `EventStream` does with an output."""
        self.over = last
        assert self.transport is not None
        if self.transport.lags:
            self.waiting.append(piece)
        else:
            self.transport.write(piece, last)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        self.slices += 1
        if self.error is not None:
            raise self.error
        data = self.waiting.pop(0) if self.waiting else b""
        return data, bool(self.waiting), self.over and not self.waiting

    def leave(self) -> None:
        self.left += 1


class Client:
    """One end of a socket pair, and at the other end a stream; `finished` counts its ends."""

    def __init__(
        self,
        sock: socket.socket,
        server: gevent.socket.socket,
        write_timeout_s: float,
        ends_body: bool,
        head: bytes,
        batcher: WriteBatcher | None,
    ) -> None:
        self.sock = sock
        self.server = server
        self.finished = 0
        self.source = Source()
        self.transport = StreamTransport(
            Connection(server), batcher or WriteBatcher(), write_timeout_s, self._finish, ends_body, head
        )
        self.source.transport = self.transport
        self.transport.start(self.source)

    def _finish(self) -> None:
        self.finished += 1

    def received(self, most: int = 1 << 20) -> bytes:
        """What has come, without waiting."""
        try:
            return self.sock.recv(most)
        except BlockingIOError:
            return b""

    def read_until_over(self) -> bytes:
        """All that comes until the stream has ended or was cut off."""
        data = b""
        with gevent.Timeout(PATIENCE_S):
            while self.transport.is_open:
                data += self.received()
                gevent.sleep(0)
        while more := self.received():
            data += more
        return data

    def stall(self) -> int:
        """Fill the socket, so that the stream lags; how many pieces were given to it."""
        for count in range(1, 1000):
            self.source.put(PIECE)
            gevent.sleep(0)
            if self.transport.lags:
                return count
        raise AssertionError("it never lags")


@contextmanager
def connected(
    write_timeout_s: float = PATIENCE_S,
    ends_body: bool = True,
    head: bytes = b"",
    batcher: WriteBatcher | None = None,
) -> Iterator[Client]:
    server, sock = gevent.socket.socketpair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    bare = socket.socket(fileno=sock.detach())
    bare.setblocking(False)
    with server, bare:
        client = Client(bare, server, write_timeout_s, ends_body, head, batcher)
        yield client
        client.transport.close()


def body_of(data: bytes, head: bytes = b"") -> bytes:
    """The content of a body that has its last chunk."""
    assert data.startswith(head) and data.endswith(LAST_CHUNK)
    return unframed(data[len(head) : -len(LAST_CHUNK)])


def test_pieces_of_one_turn_leave_in_one_write_behind_the_head() -> None:
    with connected(head=HEAD) as client:
        client.source.put(b"a")
        client.source.put(b"bc")
        assert client.received() == b""
        gevent.sleep(0)
        assert client.received() == HEAD + b"1\r\na\r\n2\r\nbc\r\n"
        client.source.put(b"d")
        gevent.sleep(0)
        assert client.received() == b"1\r\nd\r\n"


def test_a_piece_of_nothing_is_no_chunk() -> None:
    """For an empty chunk would end the body."""
    with connected() as client:
        client.source.put(b"")
        gevent.sleep(0)
        assert client.received() == b""


@pytest.mark.parametrize(("ends_body", "end"), [(True, LAST_CHUNK), (False, b"")])
def test_the_end_is_written_where_the_server_does_not_write_it(ends_body: bool, end: bytes) -> None:
    with connected(ends_body=ends_body) as client:
        client.source.put(b"a")
        client.source.put(b"b", last=True)
        assert client.finished == 0
        gevent.sleep(0)
        assert client.received() == b"1\r\na\r\n1\r\nb\r\n" + end
        assert (client.finished, client.source.left, client.transport.is_open) == (1, 0, False)


def test_an_end_without_a_last_piece_is_an_end() -> None:
    with connected() as client:
        client.source.put(b"a")
        client.source.put(b"", last=True)
        assert body_of(client.read_until_over()) == b"a" and client.finished == 1


def test_what_the_socket_does_not_take_waits_and_leaves_in_order_when_it_has_room() -> None:
    with connected() as client:
        given = client.stall()
        for number in range(50):
            client.source.put(b"%d," % number)
        client.source.put(b"end", last=True)
        gevent.sleep(QUICK_S)
        assert client.source.slices == 0, "nothing is rendered that could not leave"
        sent = body_of(client.read_until_over())
        assert sent == PIECE * given + b"".join(b"%d," % number for number in range(50)) + b"end"
        assert (client.finished, client.source.left) == (1, 0)


def test_of_what_waits_no_more_than_a_slice_is_held() -> None:
    with connected() as client:
        client.stall()
        client.source.waiting = [PIECE] * 1000
        data = b""
        for taken in range(1, 6):
            data += client.received(len(PIECE))
            gevent.sleep(QUICK_S / 5)
            assert client.source.slices <= taken + len(data) // len(PIECE) + 1


def test_who_has_caught_up_gets_each_piece_at_once_again() -> None:
    with connected() as client:
        client.stall()
        client.source.put(b"late")
        with gevent.Timeout(PATIENCE_S):
            while client.transport.lags:
                client.received()
                gevent.sleep(0)
        while client.received():
            pass
        slices = client.source.slices
        client.source.put(b"soon")
        gevent.sleep(0)
        assert client.received() == b"4\r\nsoon\r\n" and client.source.slices == slices
        client.source.put(b"end", last=True)
        assert client.read_until_over().endswith(b"3\r\nend\r\n" + LAST_CHUNK)


def test_a_stream_that_waits_from_the_start_is_asked_for_slices() -> None:
    with connected(head=HEAD) as client:
        client.source.waiting, client.source.over = [b"b", b"", b"c"], True
        client.transport.write(b"a")
        client.transport.lag()
        assert body_of(client.read_until_over(), HEAD) == b"abc"
        assert client.finished == 1


def test_one_that_lags_keeps_no_other_waiting() -> None:
    batcher = WriteBatcher()
    with connected(batcher=batcher) as stalled, connected(batcher=batcher) as other:
        stalled.stall()
        stalled.source.put(b"late")
        other.source.put(b"soon")
        gevent.sleep(0)
        assert other.received() == b"4\r\nsoon\r\n"


def test_who_takes_no_bytes_is_cut_off() -> None:
    with connected(write_timeout_s=QUICK_S) as client:
        client.stall()
        client.source.put(b"never")
        gevent.sleep(QUICK_S / 2)
        assert client.transport.is_open
        gevent.sleep(QUICK_S)
        assert (client.transport.is_open, client.finished, client.source.left) == (False, 0, 1)
        data = b""
        while more := client.received():
            data += more
        assert b"never" not in data and client.sock.recv(1) == b"", "its connection is over"


def test_who_takes_each_slice_in_time_is_served_however_long_it_takes() -> None:
    with connected(write_timeout_s=10 * QUICK_S) as client:
        given = client.stall()
        client.source.waiting, client.source.over = [PIECE] * 100, True
        data, reads = b"", 0
        while client.transport.is_open:  # a slice leaves with every few reads
            data += client.received(3000)
            reads += 1
            gevent.sleep(QUICK_S / 2)
        while more := client.received():
            data += more
        assert body_of(data) == PIECE * (given + 100)
        assert client.finished == 1 and reads * QUICK_S / 2 > 10 * QUICK_S, "longer than the limit of a slice"


def test_a_piece_for_who_has_left_ends_the_stream() -> None:
    with connected() as client:
        client.sock.close()
        client.source.put(b"a")
        gevent.sleep(0)
        assert (client.transport.is_open, client.finished, client.source.left) == (False, 0, 1)
        client.source.put(b"b", last=True)
        gevent.sleep(0)
        assert (client.finished, client.source.left) == (0, 1)


def test_who_leaves_while_its_stream_lags_ends_it() -> None:
    with connected() as client:
        client.stall()
        client.sock.close()
        gevent.sleep(QUICK_S)
        assert (client.transport.is_open, client.finished, client.source.left) == (False, 0, 1)


def test_a_reset_ends_the_stream() -> None:
    with gevent.socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with server, sock:
            client = Client(sock, server, PATIENCE_S, True, b"", None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            gevent.sleep(QUICK_S)
            client.source.put(b"a")
            gevent.sleep(0)
            assert (client.transport.is_open, client.source.left) == (False, 1)


def test_a_slice_that_cannot_be_rendered_cuts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with connected() as client:
        client.stall()
        client.source.error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")
        client.source.put(b"never")
        client.read_until_over()
        assert (client.finished, client.source.left) == (0, 1)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert client.sock.recv(1) == b""


def test_what_is_closed_sends_no_more() -> None:
    with connected() as client:
        client.source.put(b"a")
        client.transport.close()
        gevent.sleep(0)
        assert client.received() == b""
        assert (client.finished, client.source.left) == (0, 0), "who closes it knows"


@pytest.mark.parametrize("stalls", [False, True])
def test_nothing_that_only_a_collector_frees_is_left(stalls: bool) -> None:
    def serve() -> None:
        with connected() as client:
            if stalls:
                client.stall()
            client.source.put(b"a", last=True)
            client.read_until_over()
        del client.transport, client.source  # what a client knows of both is this test's own doing

    serve()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            serve()
        assert gc.collect() < 10
    finally:
        gc.enable()


@given(
    pieces=st.lists(st.binary(max_size=3000), min_size=1, max_size=20),
    reads=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5000)), max_size=10),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_client_reads_when_the_bytes_are_the_same(
    pieces: list[bytes], reads: list[tuple[int, int]]
) -> None:
    """`reads`: before which piece, and how much at most."""
    with connected(head=HEAD) as client:
        data = b""
        for number, piece in enumerate(pieces):
            for before, most in reads:
                if before == number:
                    data += client.received(most)
                    gevent.sleep(0)
            client.source.put(piece, last=number == len(pieces) - 1)
        data += client.read_until_over()
        assert body_of(data, HEAD) == b"".join(pieces)
        assert (client.finished, client.source.left) == (1, 0)


def test_a_write_that_breaks_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def breaks() -> None:
        raise ZeroDivisionError

    batcher = WriteBatcher(3)
    for send in (lambda: done.append("a"), breaks, lambda: done.append("b")):
        batcher.put(send)
    assert done == ["a", "b"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
