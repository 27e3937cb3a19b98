"""Responses kept in memory, to be read, continued, followed and cancelled.

A response in the background is kept from its beginning: the client receives a state, and comes back for more.
No greenlet waits for it. The engine emits its outputs from any place; each output changes the kept state and
wakes all followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from cachetools import LRUCache
from gevent.event import Event as Bell
from msgspec.json import decode
from msgspec.structs import replace

from app.engine.core.outputs import EngineOutput, Failed, Started, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.responder import Responder
from app.serving.api.responses.writer import ResponsesWriter
from app.serving.api.writer import ResponseWriter
from app.serving.http.connection import Connection
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import EVENT_STREAM, Response, json_response
from app.serving.protocol.common import encode
from app.serving.protocol.messages import Message
from app.serving.protocol.responses import ResponseObject

MOST_RESPONSES = 1000
MOST_BYTES = 256 << 20
UNFINISHED = ("queued", "in_progress")


class ResponseEvents:
    """Rendered events of a response in the background, for all its followers.

    An event's index is its sequence number.
    """

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.over = False
        self.bells: set[Bell] = set()
        """Bells of followers, which ring at every change."""

    @property
    def size(self) -> int:
        return sum(map(len, self.events))

    def add(self, events: Iterable[bytes]) -> None:
        self.events += events
        self._ring()

    def end(self) -> None:
        self.over = True
        self._ring()

    def _ring(self) -> None:
        for bell in self.bells:
            bell.set()


@dataclass(slots=True)
class KeptResponse:
    """A response in its present state, and the messages that it answers.

    `log` and `abort` belong to a generation in the background; `log` only if the client wants its events.
    """

    response: ResponseObject
    messages: Sequence[Message]
    log: ResponseEvents | None = None
    abort: Callable[[], None] | None = None
    _asked_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._asked_bytes = len(encode(self.messages))

    @property
    def size(self) -> int:
        return self._asked_bytes + len(encode(self.response)) + (self.log.size if self.log else 0)

    def items(self) -> list[dict[str, object]]:
        return decode(encode(self.response.output), type=list[dict[str, object]])

    def cancel(self) -> None:
        """Ends the generation. ApiError 400 when it is over, or was never in the background."""
        if self.abort is None or self.response.status not in UNFINISHED:
            raise invalid("The response is not being generated in the background.", "response_id")
        self.abort()
        self.response = replace(self.response, status="cancelled")
        if self.log is not None:
            self.log.end()


class ResponseStore:
    """Keeps up to `most` responses and `most_bytes`; forgets the least recently used one first.

    Without `keeps` the store is always empty.
    """

    def __init__(self, keeps: bool, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self.keeps = keeps
        self.limit_bytes = most_bytes
        # Each response weighs at least its share, and at most the whole store.
        self._kept: LRUCache[str, KeptResponse] = LRUCache(
            most_bytes, lambda kept: min(max(kept.size, most_bytes // most), most_bytes)
        )

    @property
    def size_bytes(self) -> int:
        return int(self._kept.currsize)

    def get(self, response_id: str) -> KeptResponse:
        """Returns the response of this id. ApiError 404 for an unknown or forgotten one."""
        kept = self._kept.get(response_id)
        if kept is None:
            raise invalid(f"There is no response {response_id[:80]!r} here.", "response_id", 404)
        return kept

    def keep(self, kept: KeptResponse) -> None:
        if self.keeps:
            self._kept[kept.response.id] = kept

    def weigh(self, kept: KeptResponse) -> None:
        """Updates the size of a response that has changed; no effect on a forgotten one."""
        if self._kept.get(kept.response.id) is kept:
            self.keep(kept)


def invalid(message: str, param: str, status: int = 400) -> ApiError:
    """Returns an error of this family's handlers in vLLM, with their own type."""
    return ApiError(status, "invalid_request_error", message, param)


class Follower:
    """Body of a response that streams the events of `log`, from number `start` on, as they come.

    Iterate once; `close` always. Ends with the log, or when the client behind `connection` has left.
    """

    def __init__(self, log: ResponseEvents, start: int, connection: Connection | None) -> None:
        self._log = log
        self._next = start
        self._connection = connection
        self._bell = Bell()
        self._gone = False

    def __iter__(self) -> Iterator[bytes]:
        self._log.bells.add(self._bell)
        yield b""  # the status line leaves at once
        if self._connection is not None:
            self._connection.watch(self._leave)
        while not self._gone:
            self._bell.clear()
            events = self._log.events[self._next :]
            if events:
                self._next += len(events)
                yield b"".join(events)
            elif self._log.over:
                return
            else:
                self._bell.wait()

    def close(self) -> None:
        self._log.bells.discard(self._bell)
        if self._connection is not None:
            self._connection.unwatch()

    def _leave(self) -> None:
        self._gone = True
        self._bell.set()


@dataclass(frozen=True, slots=True)
class Background(Responder):
    """Brings the outputs of one response into the store."""

    kept: KeptResponse
    store: ResponseStore

    @classmethod
    def of(cls, responder: Responder, kept: KeptResponse, store: ResponseStore) -> Background:
        own = {field.name: getattr(responder, field.name) for field in fields(responder)}
        return cls(**own, kept=kept, store=store)

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response before its first output; or its events, if they are kept.

        Raises EngineError as `EngineClient.submit` does, and then keeps nothing.
        """
        assert isinstance(writer, ResponsesWriter)
        kept, log, first = self.kept, self.kept.log, self.kept.response

        def emit(output: EngineOutput) -> None:
            if type(output) is Started:
                kept.response = replace(kept.response, status="in_progress")
            events = writer.events(output)
            is_last = type(output) is Failed or (type(output) is Tokens and output.finish is not None)
            if is_last:
                events += writer.last_events()
            if log is not None:
                log.add(events)
                if is_last:
                    log.end()
            if is_last:
                self.store.weigh(kept)

        if log is not None:
            log.add(writer.opening())
        kept.abort = self.engine.submit(requests, emit).abort
        self.store.keep(kept)
        if log is None:
            return json_response(first, 200, self.headers)
        return followed(log, 0, context, self.headers)


def followed(
    log: ResponseEvents, start: int, context: RequestContext, headers: Mapping[str, str]
) -> Response:
    """Returns the events of `log` from number `start` on, including future ones."""
    follower = Follower(log, start, context.connection)
    return Response(follower, 200, headers, EVENT_STREAM)
