"""Responses kept in memory, to be read, continued, followed and cancelled.

A response in the background is kept from its beginning: the client receives a state, and comes back for more.
No greenlet waits for it. The engine emits its outputs from any place; each output changes the kept state and
wakes all followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

from cachetools import LRUCache
from gevent.event import Event as Bell
from msgspec.json import decode
from msgspec.structs import replace

from app.engine.core.outputs import EngineOutput, Failed, Started, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.responder import Responder
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
END_OF_EVENT = b"\n\n"


@dataclass(slots=True)
class KeptResponse:
    """A response in its present state, and the messages that it answers.

    `events` and `abort` belong to a generation in the background; `events` only if the client wants them.
    """

    response: ResponseObject
    messages: Sequence[Message]
    events: list[bytes] | None = None
    """Rendered events; an event's index is its sequence number."""
    abort: Callable[[], None] | None = None
    over: bool = False
    """No more events come."""
    changed: Bell = field(default_factory=Bell)
    """Rings once, at the next change of the events; followers then wait for the next bell."""
    _asked_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._asked_bytes = len(encode(self.messages))

    @property
    def size(self) -> int:
        return self._asked_bytes + len(encode(self.response)) + sum(map(len, self.events or ()))

    def items(self) -> list[dict[str, object]]:
        return decode(encode(self.response.output), type=list[dict[str, object]])

    def add(self, events: bytes, over: bool = False) -> None:
        if self.events is not None:
            self.events += [event + END_OF_EVENT for event in events.split(END_OF_EVENT)[:-1]]
        self.over = over
        self.ring()

    def ring(self) -> None:
        self.changed.set()
        self.changed = Bell()

    def follow(self, start: int, connection: Connection | None) -> Iterator[bytes]:
        """Yields the events from number `start` on as they come, until the end or until the client leaves."""
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            self.ring()

        yield b""  # the status line leaves at once
        if connection is not None:
            connection.watch(leave)
        try:
            while not gone:
                changed, events = self.changed, (self.events or [])[start:]
                start += len(events)
                if events:
                    yield b"".join(events)
                elif self.over:
                    return
                else:
                    changed.wait()
        finally:
            if connection is not None:
                connection.unwatch()

    def cancel(self) -> None:
        """Ends the generation. ApiError 400 when it is over, or was never in the background."""
        if self.abort is None or self.response.status not in UNFINISHED:
            raise invalid("The response is not being generated in the background.", "response_id")
        self.abort()
        self.response = replace(self.response, status="cancelled")
        self.add(b"", over=True)


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
    return ApiError(status, "invalid_request_error", message, param)


@dataclass(frozen=True, slots=True)
class Background(Responder):
    kept: KeptResponse
    store: ResponseStore

    @classmethod
    def of(cls, responder: Responder, kept: KeptResponse, store: ResponseStore) -> Background:
        own = {field.name: getattr(responder, field.name) for field in fields(responder)}
        return cls(**own, kept=kept, store=store)

    def respond(
        self, requests: Sequence[EngineRequest], writer: ResponseWriter, stream: bool, context: RequestContext
    ) -> Response:
        """Returns the response before its first output; or its events, if they are kept.

        Raises EngineError as `EngineClient.submit` does, and then keeps nothing.
        """
        kept, first = self.kept, self.kept.response

        def emit(output: EngineOutput) -> None:
            if type(output) is Started:
                kept.response = replace(kept.response, status="in_progress")
            events = writer.chunk(output)
            over = type(output) is Failed or (type(output) is Tokens and output.finish is not None)
            kept.add(events + writer.closing() if over else events, over)
            if over:
                self.store.weigh(kept)

        kept.abort = self.engine.submit(requests, emit).abort
        self.store.keep(kept)
        if kept.events is None:
            return json_response(first, 200, self.headers)
        return Response(kept.follow(0, context.connection), 200, self.headers, EVENT_STREAM)
