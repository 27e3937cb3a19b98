"""Responses that are generated in the background: the client gets a state, and comes back for more.

No greenlet waits for them. The service emits their events wherever they come about, and each changes the kept
state and rings at whoever follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from msgspec.structs import replace

from app.api.responder import Delivery
from app.api.responses.store import EventLog, Follower, KeptResponse, ResponseStore
from app.api.responses.writer import ResponsesWriter
from app.api.writer import ResponseWriter
from app.engine.client import Service
from app.engine.outputs import Event, Failed, Started, Tokens
from app.engine.request import Generation
from app.http.connection import Connection
from app.http.response import Reply, json_reply
from app.http.sse import MEDIA_TYPE
from app.protocol.response_object import ResponseObject


class BackgroundRun:
    """Keeps `kept` up to date while it is generated."""

    def __init__(self, kept: KeptResponse, store: ResponseStore) -> None:
        self.kept = kept
        self._store = store
        self._answer: ResponsesWriter | None = None

    def start(self, service: Service, generations: Sequence[Generation], answer: ResponsesWriter) -> None:
        """Begin. Raises ApiError as `Service.submit` does, and nothing is kept then."""
        self._answer = answer
        self._tell(answer.opening())
        self.kept.abort = service.submit(generations, self.emit).abort
        self._store.keep(self.kept)

    def emit(self, event: Event) -> None:
        """Take an event of the service."""
        assert self._answer is not None
        if type(event) is Started:
            self.kept.response = replace(self.kept.response, status="in_progress")
        self._tell(self._answer.events(event))
        if type(event) is Failed or (type(event) is Tokens and event.finish is not None):
            self._tell(self._answer.last_events())
            if self.kept.log is not None:
                self.kept.log.end()
            self._store.weigh(self.kept)

    def end(self, response: ResponseObject) -> None:
        """Take the last state of the response, from its answer."""
        self.kept.response = response

    def _tell(self, events: Sequence[bytes]) -> None:
        if self.kept.log is not None:
            self.kept.log.add(events)


@dataclass(frozen=True, slots=True)
class Background(Delivery):
    """Delivers one response into the store."""

    run: BackgroundRun

    @classmethod
    def of(cls, delivery: Delivery, run: BackgroundRun) -> Background:
        """As `delivery`, but for `run`."""
        return cls(**{field.name: getattr(delivery, field.name) for field in fields(delivery)}, run=run)

    def reply(
        self,
        generations: Sequence[Generation],
        answer: ResponseWriter,
        stream: bool,
        environ: Mapping[str, Any],
    ) -> Reply:
        """The response as it is before anything has come; or its events, if they are kept."""
        assert isinstance(answer, ResponsesWriter)
        kept = self.run.kept
        first = kept.response
        self.run.start(self.service, generations, answer)
        if kept.log is None:
            return json_reply(first, 200, self.headers)
        return followed(kept.log, 0, environ, self.headers)


def followed(log: EventLog, start: int, environ: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
    """The events of `log` from number `start` on, and those that are still to come."""
    follower = Follower(log, start, Connection.of(environ))
    return Reply(follower, 200, headers, content_type=MEDIA_TYPE)
