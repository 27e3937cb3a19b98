"""Responses in the background: the engine's outputs change the stored state as they come.

No greenlet waits for a response in the background. The client receives a state, and comes back for
more; each output of the engine wakes all followers of the events.
"""

from collections.abc import Sequence

from app.core.api.responder import Responder
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Failed, Tokens
from app.core.engine.request import EngineRequest
from app.core.server.http.context import RequestContext
from app.core.server.http.response import EVENT_STREAM, Response, json_response
from app.extensions.responses.store import ResponseStore
from app.extensions.responses.stored_response import StoredResponse


class BackgroundResponder(Responder, frozen=True, kw_only=True):
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
