"""A stream in the hands of a server that is none, with a socket that takes what it is told to take."""

import socket
import weakref
from collections.abc import Callable
from typing import Any, cast

import gevent

from app.core.api.choice_state import ChoiceState
from app.core.api.responder import EventStream
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Failed, Finish, Tokens
from app.core.engine.sequence import Handle
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.stream_transport import LAST_CHUNK, StreamTransport, WriteBatcher

END = b"[end]"


class Plain:
    def __init__(self) -> None:
        self.most_at_once = 0
        self.choices = [ChoiceState()]
        self.joiner = None

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        return b"", b""

    def chunk(self, event: EngineOutput) -> bytes:
        if isinstance(event, Tokens):
            self.most_at_once = max(self.most_at_once, len(event.ids))
            return "".join(event.texts).encode()
        return b"[failed]" if isinstance(event, Failed) else b""

    def closing(self) -> bytes:
        return END


class Socket:
    """A connection that takes as many bytes at once as it was told; everything when it was not
    told.

    Its descriptor is that of a socket that has always room.
    """

    def __init__(self, *takes: int) -> None:
        self.takes = list(takes)
        self.received = b""
        self.watching: Callable[[], None] | None = None
        self.watched = False
        self._pair = socket.socketpair()
        # Not every test sees the end of its stream.
        self._close = weakref.finalize(self, lambda pair: [end.close() for end in pair], self._pair)

    def send(self, data: bytes | memoryview) -> int:
        take = self.takes.pop(0) if self.takes else len(data)
        self.received += data[:take]
        return min(take, len(data))

    def fileno(self) -> int:
        return self._pair[0].fileno()

    def watch(self, gone: Callable[[], None]) -> None:
        self.watching = gone
        self.watched = True

    def unwatch(self) -> None:
        self.watching = None

    def close(self) -> None:
        self._close()


class Running:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Served:
    """An EventStream in the hands of a server:

    attached to a transport, or iterated in a greenlet.
    """

    def __init__(
        self,
        socket: Socket | None,
        choices: int = 1,
        direct: bool = True,
        writer: ResponseWriter | None = None,
        keep_alive_s: float = 0.0,
    ) -> None:
        self.socket = socket
        self.direct = direct
        self.plain = Plain()
        self.connection = cast("ClientConnection", socket)
        self.stream = EventStream(
            writer or self.plain, choices, self.connection, keep_alive_s=keep_alive_s
        )
        self.running = Running()
        self.stream.handle = cast("Handle", self.running)
        self.yielded: list[bytes] = []

    def serve(self) -> None:
        self.greenlet = gevent.spawn(self._send if self.direct else self._iterate)
        gevent.sleep(0)

    def _send(self) -> None:
        transport = StreamTransport(cast(Any, self.socket), WriteBatcher(), 1.0)
        self.connection.watch(transport.client_gone)
        self.stream.attach(transport)
        while transport.is_open:
            gevent.sleep(0.001)
        self.stream.close()

    def _iterate(self) -> None:
        for item in self.stream:
            self.yielded.append(item)
        self.stream.close()

    def ended(self) -> bool:
        self.greenlet.join(5)
        if self.socket is not None:
            self.socket.close()
        return bool(self.greenlet.successful())

    def content(self) -> bytes:
        if not self.direct or self.socket is None:
            return b"".join(self.yielded)
        assert self.socket.received.endswith(LAST_CHUNK)
        return unframed(self.socket.received.removesuffix(LAST_CHUNK))


def tokens(text: str, index: int = 0, last: bool = False, ids: int = 1) -> Tokens:
    texts = [text] + [""] * (ids - 1)
    return Tokens(
        index,
        texts,
        ids=list(range(ids)),
        at_s=0.0,
        logprobs=None,
        finish=Finish("stop") if last else None,
    )


def unframed(data: bytes) -> bytes:
    """The content of HTTP/1.1 chunks; no empty chunk may be among them."""
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        assert int(size, 16) > 0
        content = content + data[: int(size, 16)]
        data = data[int(size, 16) :]
        assert data.startswith(b"\r\n")
        data = data[2:]
    return content
