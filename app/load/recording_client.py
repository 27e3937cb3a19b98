"""A client that measures: sends requests at their moments, and writes down when what came.

It does next to nothing between looking at the clock and looking again: one thread waits for all sockets at
once, what they have by then came by then, and bytes are only put away. What they say is read when nothing
else is to be done. So many streams that come in one burst, as those of an engine's step do, make no moment
later than it was.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct

from config import ConfigError

END = b"0\r\n\r\n"
"""Of a chunked body."""
HEAD_END = b"\r\n\r\n"
DATA = b"data: "
DONE = b"[DONE]"
RECEIVE_BYTES = 1 << 18
REUSE_S = 2.0
"""A connection that has been idle for longer is not used again: servers close those after a few seconds."""
AHEAD = 64
"""Requests that are written before they are due."""
PATIENCE_S = 300.0
"""How long nothing at all may come while requests are under way."""


class RecordError(Exception):
    """What went wrong at the server, in one line."""


class Target(Struct, frozen=True):
    """Where requests go."""

    host: str
    port: int
    prefix: str
    """Of its paths."""


class Wanted(Struct):
    """A request to send."""

    arrival_s: float
    body: bytes
    output_tokens: int


class Measured(Struct):
    """What became of a request; seconds since the start."""

    number: int
    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int


class Load(Protocol):
    """What is sent, in order of arrival."""

    def __len__(self) -> int: ...

    def wanted(self, number: int) -> Wanted: ...


class _Choice(Struct):
    text: str | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Event(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = UNSET


class _Stream:
    """A connection, and what came for the request that it has."""

    __slots__ = ("idle_s", "number", "pieces", "send_s", "size", "socket", "tail", "unsent", "wanted")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pieces: list[tuple[float, bytes]] = []
        """What came, and when."""
        self.tail = b""
        """The last bytes of it."""
        self.size: int | None = None
        """Of the whole answer: 0 when it comes in chunks, None as long as its head has not come."""
        self.unsent = b""
        self.number = -1
        self.send_s = self.idle_s = 0.0
        self.wanted: Wanted

    def begin(self, number: int, wanted: Wanted, request: bytes, send_s: float) -> None:
        self.number, self.wanted, self.unsent, self.send_s = number, wanted, request, send_s
        self.pieces, self.tail, self.size = [], b"", None

    def take(self, now_s: float, data: bytes) -> bool:
        """Put away what came; whether the answer is whole with it."""
        self.pieces.append((now_s, data))
        self.tail = data[-len(END) :] if len(data) >= len(END) else (self.tail + data)[-len(END) :]
        if self.size is None:
            self.size = _size(b"".join(piece for _, piece in self.pieces))
        if self.size:
            return sum(len(piece) for _, piece in self.pieces) >= self.size
        return self.tail == END


def read_target(url: str) -> Target:
    """ConfigError for what is no URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise ConfigError(f"target {url}: {error}") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"target {url}: must be like http://host:8000 (TLS is not measured)")
    return Target(parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"))


class RecordingClient:
    """Sends a load to a server, at most `in_flight` requests at a time."""

    def __init__(
        self,
        target: Target,
        headers: dict[str, str],
        in_flight: int | None,
        now: Callable[[], float],
        tell: Callable[[int, int, int], None],
    ) -> None:
        """`tell` gets how many requests were sent, are under way, and are to be sent in all."""
        self._target = target
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._in_flight = in_flight
        self._now = now
        self._tell = tell
        self._epoll = select.epoll()
        self._streams: dict[int, _Stream] = {}
        """All that are open, by file number."""
        self._idle: deque[_Stream] = deque()
        """Who has no request; the last has been idle for the shortest time."""
        self._over: deque[tuple[int, Wanted, float, list[tuple[float, bytes]]]] = deque()
        """Answers that are there, and nobody has read."""
        self._ready: deque[Wanted] = deque()
        self._sent = self._under_way = 0

    def run(self, load: Load) -> list[Measured]:
        """In order of arrival. RecordError, in one line, as soon as anything fails."""
        measured: list[Measured] = []
        start_s = heard_s = self._now()
        try:
            while self._sent < len(load) or self._under_way or self._over:
                self._prepare(load, 1)
                now_s = self._now() - start_s
                while self._may_send() and self._ready and self._ready[0].arrival_s <= now_s:
                    self._send(self._ready.popleft(), start_s)
                    self._prepare(load, 1)
                busy = self._wait(self._pause_s(start_s), start_s)
                if busy:
                    heard_s = self._now()
                else:
                    self._work(load, measured)
                if self._under_way and self._now() - heard_s > PATIENCE_S:
                    raise RecordError(f"nothing came for {PATIENCE_S:g} s, with {self._under_way} under way")
                self._tell(self._sent, self._under_way, len(load))
        finally:
            for stream in self._streams.values():
                stream.socket.close()
            self._epoll.close()
        return sorted(measured, key=lambda it: it.number)

    def _prepare(self, load: Load, count: int) -> bool:
        """Write requests that come next; whether there were any to write."""
        following = self._sent + len(self._ready)
        if len(self._ready) >= count or following >= len(load):
            return False
        self._ready.append(load.wanted(following))
        return True

    def _work(self, load: Load, measured: list[Measured]) -> None:
        """One thing that is not urgent."""
        if self._over:
            measured.append(_measured(*self._over.popleft()))
        else:
            self._prepare(load, AHEAD)

    def _may_send(self) -> bool:
        return self._in_flight is None or self._under_way < self._in_flight

    def _pause_s(self, start_s: float) -> float:
        """How long there is nothing to do but wait."""
        if self._over or (len(self._ready) < AHEAD and self._ready):
            return 0.0
        if not self._ready or not self._may_send():
            return 1.0
        return max(0.0, min(1.0, self._ready[0].arrival_s - (self._now() - start_s)))

    def _wait(self, pause_s: float, start_s: float) -> bool:
        """Take what has come; whether anything had."""
        ready = self._epoll.poll(pause_s)
        now_s = self._now() - start_s
        for number, event in ready:
            stream = self._streams[number]
            if event & select.EPOLLOUT and stream.unsent:
                self._write(stream)
            if event & ~select.EPOLLOUT:
                self._read(stream, now_s)
        return bool(ready)

    def _send(self, wanted: Wanted, start_s: float) -> None:
        stream = self._connection()
        target = self._target
        head = (
            f"POST {target.prefix}/v1/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(wanted.body)}\r\n{self._headers}\r\n"
        )
        request = head.encode() + wanted.body
        stream.begin(self._sent, wanted, request, self._now() - start_s)
        self._sent += 1
        self._under_way += 1
        self._write(stream)

    def _connection(self) -> _Stream:
        """One that is open; a new one where there is none."""
        while self._idle:
            stream = self._idle.pop()
            if self._now() - stream.idle_s < REUSE_S:
                return stream
            self._close(stream)
        try:
            connection = socket.create_connection((self._target.host, self._target.port), 10)
        except OSError as error:
            raise RecordError(f"cannot connect: {error.strerror or error}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        stream = self._streams[connection.fileno()] = _Stream(connection)
        self._epoll.register(connection, select.EPOLLIN)
        return stream

    def _close(self, stream: _Stream) -> None:
        del self._streams[stream.socket.fileno()]
        stream.socket.close()

    def _write(self, stream: _Stream) -> None:
        with suppress(BlockingIOError):
            try:
                stream.unsent = stream.unsent[stream.socket.send(stream.unsent) :]
            except (BrokenPipeError, ConnectionResetError):
                raise RecordError(f"request {stream.number + 1}: the server closed the connection") from None
        events = select.EPOLLIN | (select.EPOLLOUT if stream.unsent else 0)
        self._epoll.modify(stream.socket, events)

    def _read(self, stream: _Stream, now_s: float) -> None:
        try:
            data = stream.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise RecordError(f"request {stream.number + 1}: {error.strerror}") from None
        if stream.number < 0:  # idle, and closed by the server
            self._idle.remove(stream)
            self._close(stream)
            return
        if data and not stream.take(now_s, data):
            return
        self._over.append((stream.number, stream.wanted, stream.send_s, stream.pieces))
        self._under_way -= 1
        stream.number = -1
        if data:
            stream.idle_s = self._now()
            self._idle.append(stream)
        else:
            self._close(stream)


def _size(begun: bytes) -> int | None:
    """Bytes of an answer that begins so, if its head tells; 0 for chunks, None for half a head."""
    head, found, _ = begun.partition(HEAD_END)
    if not found:
        return None
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    digits = rest.partition(b"\r\n")[0].strip()
    return len(head) + len(HEAD_END) + int(digits) if found and digits.isdigit() else 0


def _measured(number: int, wanted: Wanted, send_s: float, pieces: list[tuple[float, bytes]]) -> Measured:
    """Read an answer. RecordError when it is not what was asked for."""
    named = f"request {number + 1}"
    head, _, body = b"".join(data for _, data in pieces).partition(HEAD_END)
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status + b" ":
        raise RecordError(f"{named}: {_one_line(status) or 'no answer'}: {_one_line(body)}")
    moments: list[float] = []
    usage, done = None, False
    for at_s, line in _events(pieces):
        if line == DONE:
            done = True
            continue
        try:
            event = msgspec.json.decode(line, type=_Event)
        except msgspec.MsgspecError as error:
            raise RecordError(f"{named}: an event of its stream cannot be read: {error}") from None
        if event.error is not UNSET:
            raise RecordError(f"{named}: its stream has an error: {_one_line(line)}")
        if event.choices:
            moments.append(at_s)
        usage = event.usage or usage
    if not done or not moments or usage is None:
        raise RecordError(f"{named}: its stream broke off, or has no usage")
    if usage.completion_tokens != wanted.output_tokens:
        raise RecordError(
            f"{named}: has {usage.completion_tokens} output tokens, not the {wanted.output_tokens} asked for"
            " with ignore_eos and min_tokens"
        )
    return Measured(
        number,
        wanted.arrival_s,
        send_s,
        moments[0],
        moments[-1],
        usage.prompt_tokens,
        usage.completion_tokens,
    )


def _events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The events of a stream, with the moments of their last bytes."""
    rest = b""
    for at_s, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                yield at_s, line.removeprefix(DATA).strip()


def _one_line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:200]
