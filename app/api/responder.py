"""From generations to a response: streamed as events come, or whole when the last one has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gevent.event import Event as Bell

from app.api.stream import EventStream
from app.api.writer import ResponseWriter
from app.engine.client import SequenceGroup, Service
from app.engine.outputs import Event, Failed, Tokens
from app.engine.request import Generation
from app.http.connection import Connection
from app.http.errors import ApiError
from app.http.response import Reply, json_reply
from app.http.sse import MEDIA_TYPE
from app.http.write_batcher import WriteBatcher
from app.middleware.damage import is_damaged, spoilt

CLIENT_GONE = 499
"""Status, for the logs only, of an answer that nobody waits for any more."""


class ServerLoad:
    """Requests being answered now, as GET /load tells when tracking is on."""

    def __init__(self, tracked: bool) -> None:
        self.count = 0
        self._tracked = tracked

    def begin(self) -> None:
        self.count += self._tracked

    def end(self) -> None:
        self.count -= self._tracked


@dataclass(frozen=True, slots=True)
class Delivery:
    """Has generations played and brings their events to the client.

    `headers` are added to every answer; a client that takes no bytes for `write_timeout_s` is dropped.
    """

    service: Service
    load: ServerLoad
    headers: Mapping[str, str]
    outbox: WriteBatcher
    write_timeout_s: float

    def reply(
        self,
        generations: Sequence[Generation],
        answer: ResponseWriter,
        stream: bool,
        environ: Mapping[str, Any],
    ) -> Reply:
        """The response to a request for `generations`. Raises ApiError as `Service.submit` does."""
        play = self._stream if stream else self._whole
        return spoilt(play(generations, answer, environ), environ)

    def broken(self, error: ApiError, answer: ResponseWriter) -> Reply:
        """A stream that ends with `error` before its first token."""
        told = [answer.chunk(Failed(0, error)), answer.closing()]
        return Reply(told, 200, self.headers, content_type=MEDIA_TYPE)

    def _stream(
        self, generations: Sequence[Generation], answer: ResponseWriter, environ: Mapping[str, Any]
    ) -> Reply:
        connection = Connection.of(environ)
        direct = environ.get("SERVER_PROTOCOL") == "HTTP/1.1" and not is_damaged(environ)
        stream = EventStream(
            answer,
            len(generations),
            connection,
            direct and connection is not None and connection.plain,
            self.outbox,
            self.write_timeout_s,
        )
        stream.group = self.service.submit(generations, stream.emit)
        reply = Reply(stream, 200, self.headers, content_type=MEDIA_TYPE)
        self.load.begin()
        reply.call_on_close(self.load.end)
        return reply

    def _whole(
        self, generations: Sequence[Generation], answer: ResponseWriter, environ: Mapping[str, Any]
    ) -> Reply:
        gathered = Gathering(len(generations))
        group = self.service.submit(generations, gathered.emit)
        if gathered.unfinished:
            self.load.begin()
            try:
                gathered.wait(group, Connection.of(environ))
            finally:
                self.load.end()
        if gathered.gone:
            return json_reply(b"", CLIENT_GONE)
        return json_reply(answer.body(gathered.events), 200, self.headers)


class Gathering:
    """Collects the events of `choices` sequences until the last one is over."""

    def __init__(self, choices: int) -> None:
        self.events: list[Event] = []
        self.unfinished = choices
        self.gone = False
        self._bell: Bell | None = None

    def emit(self, event: Event) -> None:
        if not self.unfinished:  # one choice failed: the others do not matter any more
            return
        self.events.append(event)
        if type(event) is Failed:
            self.unfinished = 0
        elif type(event) is Tokens and event.finish is not None:
            self.unfinished -= 1
        if not self.unfinished and self._bell is not None:
            self._bell.set()

    def wait(self, group: SequenceGroup, connection: Connection | None) -> None:
        """Sleep until all is gathered, or the client has gone; then nothing of `group` goes on."""
        self._bell = bell = Bell()
        if connection is not None:
            connection.watch(self._leave)
        try:
            bell.wait()
        finally:
            if connection is not None:
                connection.unwatch()
            group.abort()

    def _leave(self) -> None:
        self.gone = True
        if self._bell is not None:
            self._bell.set()
