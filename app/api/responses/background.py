"""Responses that are generated in the background: the client gets a state, and comes back for more.

No greenlet waits for them. The engine emits their outputs wherever they come about, and each changes the kept
state and wakes whoever follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from msgspec.structs import replace

from app.api.responder import Responder
from app.api.responses.store import EventLog, Follower, KeptResponse, ResponseStore
from app.api.responses.writer import ResponsesWriter
from app.api.writer import ResponseWriter
from app.engine.client import EngineClient
from app.engine.outputs import EngineOutput, Failed, Started, Tokens
from app.engine.request import EngineRequest
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.sse import MEDIA_TYPE
from app.protocol.response_object import ResponseObject


class BackgroundRun:
    """Keeps `kept` up to date while it is generated."""

    def __init__(self, kept: KeptResponse, store: ResponseStore) -> None:
        self.kept = kept
        self._store = store
        self._writer: ResponsesWriter | None = None

    def start(self, engine: EngineClient, requests: Sequence[EngineRequest], writer: ResponsesWriter) -> None:
        """Begin. Raises EngineError as `EngineClient.submit` does, and nothing is kept then."""
        self._writer = writer
        self._log(writer.opening())
        self.kept.abort = engine.submit(requests, self.emit).abort
        self._store.keep(self.kept)

    def emit(self, output: EngineOutput) -> None:
        """Take an output of the engine."""
        assert self._writer is not None
        if type(output) is Started:
            self.kept.response = replace(self.kept.response, status="in_progress")
        self._log(self._writer.events(output))
        if type(output) is Failed or (type(output) is Tokens and output.finish is not None):
            self._log(self._writer.last_events())
            if self.kept.log is not None:
                self.kept.log.end()
            self._store.weigh(self.kept)

    def end(self, response: ResponseObject) -> None:
        """Take the last state of the response, from its writer."""
        self.kept.response = response

    def _log(self, events: Sequence[bytes]) -> None:
        if self.kept.log is not None:
            self.kept.log.add(events)


@dataclass(frozen=True, slots=True)
class Background(Responder):
    """Brings the outputs of one response into the store."""

    run: BackgroundRun

    @classmethod
    def of(cls, responder: Responder, run: BackgroundRun) -> Background:
        """As `responder`, but for `run`."""
        return cls(**{field.name: getattr(responder, field.name) for field in fields(responder)}, run=run)

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """The response as it is before anything has come; or its events, if they are kept."""
        assert isinstance(writer, ResponsesWriter)
        kept = self.run.kept
        first = kept.response
        self.run.start(self.engine, requests, writer)
        if kept.log is None:
            return json_response(first, 200, self.headers)
        return followed(kept.log, 0, context, self.headers)


def followed(log: EventLog, start: int, context: RequestContext, headers: Mapping[str, str]) -> Response:
    """The events of `log` from number `start` on, and those that are still to come."""
    follower = Follower(log, start, context.connection)
    return Response(follower, 200, headers, MEDIA_TYPE)
