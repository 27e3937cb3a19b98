"""Responses in the background: the engine's outputs change the stored state as they come.

No greenlet waits for a response in the background. The client receives a state, and comes back for
more; each output of the engine wakes all followers of the events.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.core.outputs import EngineOutput, Failed, Started, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.responder import Responder
from app.serving.api.responses.store import ResponseStore, StoredResponse
from app.serving.api.writer import ResponseWriter
from app.serving.http.context import RequestContext
from app.serving.http.response import EVENT_STREAM, Response, json_response


@dataclass(frozen=True, slots=True)
class BackgroundResponder(Responder):
    """Responds with the present state of `stored`, and adds the engine's outputs to it."""

    stored: StoredResponse
    store: ResponseStore

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response before its first output, or its events where they are stored.

        Raises:
            EngineError: as `EngineClient.submit` does; nothing is stored then.
        """
        stored = self.stored
        initial_body = stored.body

        def emit(output: EngineOutput) -> None:
            if type(output) is Started:
                stored.update_status("in_progress")
            events = writer.chunk(output)
            is_over = type(output) is Failed or (
                type(output) is Tokens and output.finish is not None
            )
            if not is_over:
                stored.append_events(events)
                return
            stored.append_events(events + writer.closing(), is_over=True)
            self.store.update_size(stored)

        abort = self.engine.submit(requests, emit).abort
        if not stored.is_over:
            stored.abort = abort
        self.store.store(stored)
        if stored.events is None:
            return json_response(initial_body, 200, self.headers)
        return Response(stored.follow(0, context.connection), 200, self.headers, EVENT_STREAM)
