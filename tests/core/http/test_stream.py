"""Chunked bodies on a real socket: batched writes, slices for slow clients, and timeouts."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import gevent.socket
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.server.http.stream_transport import LAST_CHUNK, StreamTransport, WriteBatcher
from tests.core.api.served_stream import unframed

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
PIECE = b"<piece>" * 100
PATIENCE_S = 5.0
QUICK_S = 0.05


class Client:
    """One end of a socket pair; at the other end a stream, whose source this is, too.

    As a source it keeps pieces while the stream lags, and gives one of them a slice.
    """

    def __init__(
        self,
        sock: socket.socket,
        server: gevent.socket.socket,
        write_timeout_s: float = PATIENCE_S,
        head: bytes = b"",
    ) -> None:
        self.sock = sock
        self.waiting: list[bytes] = []
        self.over = False
        self.left = 0
        self.transport = StreamTransport(server, WriteBatcher(), write_timeout_s)
        if head:
            self.transport.put(head)
        self.transport.start(self)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        data = self.waiting.pop(0) if self.waiting else b""
        return data, bool(self.waiting), self.over and not self.waiting

    def leave(self) -> None:
        self.left += 1

    def ended(self) -> tuple[bool, int]:
        """Whether the stream is open, and how often its client has left."""
        return self.transport.is_open, self.left

    def put(self, piece: bytes, last: bool = False) -> None:
        """Does what an `EventStream` does with an output."""
        self.over = last
        if self.transport.lags:
            self.waiting.append(piece)
        else:
            self.transport.write(piece, last)

    def puts(self, *pieces: bytes) -> bytes:
        """Puts pieces, and returns what has come at the end of the turn."""
        for piece in pieces:
            self.put(piece)
        gevent.sleep(0)
        return self.received()

    def received(self, most_bytes: int = 1 << 20) -> bytes:
        """Returns what has come, without waiting."""
        try:
            return self.sock.recv(most_bytes)
        except BlockingIOError:
            return b""

    def read_until_over(self) -> bytes:
        """Returns all that comes until the stream has ended or was cut off."""
        data = b""
        with gevent.Timeout(PATIENCE_S):
            while self.transport.is_open:
                data += self.received()
                gevent.sleep(0)
        while received := self.received():
            data += received
        return data

    def stall(self) -> int:
        """Fills the socket, so that the stream lags; returns how many pieces that took."""
        for count in range(1, 1000):
            self.put(PIECE)
            gevent.sleep(0)
            if self.transport.lags:
                return count
        raise AssertionError("it never lags")


@contextmanager
def connected(write_timeout_s: float = PATIENCE_S, head: bytes = b"") -> Iterator[Client]:
    server, sock = gevent.socket.socketpair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    bare = socket.socket(fileno=sock.detach())
    bare.setblocking(False)
    with server, bare:
        client = Client(bare, server, write_timeout_s, head)
        yield client
        client.transport.close()


def body_of(data: bytes, head: bytes = b"") -> bytes:
    """Returns the content of a body that has its last chunk."""
    assert data.startswith(head) and data.endswith(LAST_CHUNK)
    return unframed(data[len(head) : -len(LAST_CHUNK)])


def test_head_and_first_pieces_are_sent_in_one_write() -> None:
    with connected(head=HEAD) as client:
        client.put(b"a")
        assert client.received() == b""
        assert client.puts(b"bc") == HEAD + b"1\r\na\r\n2\r\nbc\r\n"
        assert client.puts(b"d") == b"1\r\nd\r\n"
        assert client.puts(b"") == b"", "an empty chunk would end the body"


def test_last_chunk_marker_is_sent_with_the_last_piece() -> None:
    for last, chunk in ((b"b", b"1\r\nb\r\n"), (b"", b"")):
        with connected() as client:
            client.put(b"a")
            client.put(last, last=True)
            assert client.puts() == b"1\r\na\r\n" + chunk + LAST_CHUNK
            assert client.ended() == (False, 0)


def test_slow_client_that_reads_each_slice_in_time_is_not_disconnected() -> None:
    with connected(write_timeout_s=4 * QUICK_S) as client:
        stalled_pieces = client.stall()
        client.waiting = [PIECE] * 40
        client.over = True
        data = b""
        reads = 0
        while client.transport.is_open:  # a slice leaves with every few reads
            data += client.received(3000)
            reads += 1
            gevent.sleep(QUICK_S / 2)
        assert body_of(data + client.read_until_over()) == PIECE * (stalled_pieces + 40)
        assert client.left == 0 and reads * QUICK_S / 2 > 4 * QUICK_S, (
            "longer than the limit of a slice"
        )


@given(
    pieces=st.lists(st.binary(max_size=3000), min_size=1, max_size=20),
    reads=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5000)), max_size=10),
)
@settings(max_examples=40, deadline=None)
def test_client_receives_the_same_bytes_at_any_reading_pace(
    pieces: list[bytes], reads: list[tuple[int, int]]
) -> None:
    """`reads`: before which piece, and how much at most."""
    with connected(head=HEAD) as client:
        data = b""
        for number, piece in enumerate(pieces):
            for pieces_before, most_bytes in reads:
                if pieces_before == number:
                    data += client.received(most_bytes)
                    gevent.sleep(0)
            client.put(piece, last=number == len(pieces) - 1)
        data += client.read_until_over()
        assert body_of(data, HEAD) == b"".join(pieces)
        assert client.left == 0


def test_pending_stream_chunks_are_joined_into_one_write() -> None:
    server, sock = gevent.socket.socketpair()
    sock.setblocking(False)
    with server, sock:
        transport = StreamTransport(server, WriteBatcher(max_waiting=2), PATIENCE_S)
        transport.write(b"a")
        transport.write(b"b")
        with pytest.raises(BlockingIOError):
            sock.recv(100)
        gevent.sleep(0)
        assert unframed(sock.recv(100)) == b"ab"
        transport.close()
