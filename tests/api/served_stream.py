"""A stream in the hands of a server that is none, with a socket that takes what it is told to take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gevent

from app.api.stream import EventStream
from app.engine.outputs import EngineOutput, Failed, Finish, Tokens
from app.http.write_batcher import WriteBatcher

END = b"[end]"


class Plain:
    """An answer that writes the texts of tokens, and nothing else."""

    def __init__(self) -> None:
        self.most_at_once = 0

    def chunk(self, event: EngineOutput) -> bytes:
        if isinstance(event, Tokens):
            self.most_at_once = max(self.most_at_once, len(event.ids))
            return "".join(event.texts).encode()
        return b"[failed]" if isinstance(event, Failed) else b""

    def closing(self) -> bytes:
        return END

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        raise NotImplementedError


class Socket:
    """A connection that takes as many bytes at once as it was told; everything when it was not told."""

    def __init__(self, *takes: int | OSError) -> None:
        self.takes = list(takes)
        self.received = b""
        self.ended: Callable[[], None] | None = None
        self.breaks: OSError | None = None
        self.watching: Callable[[], None] | None = None
        self.watched = self.is_shut = False

    def send_now(self, data: bytes) -> int:
        take = self.takes.pop(0) if self.takes else len(data)
        if isinstance(take, OSError):
            raise take
        self.received += data[:take]
        return min(take, len(data))

    def send_all(self, data: bytes, timeout_s: float) -> None:
        gevent.sleep(0)
        if self.breaks is not None:
            raise self.breaks
        self.received += data

    def watch(self, gone: Callable[[], None]) -> None:
        self.watching, self.watched = gone, True

    def unwatch(self) -> None:
        self.watching = None

    def shut(self) -> None:
        self.is_shut = True


class Group:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Served:
    """An EventStream in the hands of a server: headers sent, iterated in a greenlet, closed at the end."""

    def __init__(
        self, socket: Socket | None, choices: int = 1, direct: bool = True, answer: Any = None
    ) -> None:
        self.socket = socket
        self.answer = answer or Plain()
        self.stream = EventStream(
            self.answer,
            choices,
            socket,  # type: ignore[arg-type]
            direct,
            WriteBatcher(),
            1.0,
        )
        self.group = Group()
        self.stream.group = self.group  # type: ignore[assignment]
        self.yielded: list[bytes] = []

    def serve(self) -> None:
        self.greenlet = gevent.spawn(self._iterate)
        gevent.sleep(0)

    def _iterate(self) -> None:
        for item in self.stream:
            self.yielded.append(item)
        self.stream.close()

    def ended(self) -> bool:
        self.greenlet.join(5)
        return bool(self.greenlet.successful())


def tokens(text: str, index: int = 0, last: bool = False, ids: int = 1) -> Tokens:
    texts = [text] + [""] * (ids - 1)
    return Tokens(index, texts, list(range(ids)), 0.0, None, Finish("stop") if last else None)


def unframed(data: bytes) -> bytes:
    """The content of HTTP/1.1 chunks; no empty chunk may be among them."""
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        assert int(size, 16) > 0
        content, data = content + data[: int(size, 16)], data[int(size, 16) :]
        assert data.startswith(b"\r\n")
        data = data[2:]
    return content
