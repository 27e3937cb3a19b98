"""Responses in the background: the engine's outputs change the stored state as they come.

No greenlet waits for a response in the background. The client receives a state, and comes back for
more; each output of the engine wakes all followers of the events.
"""

from collections.abc import Sequence

from app.core.api.errors import as_api_error
from app.core.api.responder import Responder
from app.core.api.writer import ResponseWriter
from app.core.base.overload import MemoryExceededError, MemoryFullError
from app.core.engine.outputs import EngineOutput, Failed, Tokens
from app.core.engine.request import EngineRequest
from app.core.server.http.context import RequestContext
from app.core.server.http.response import EVENT_STREAM, Response, json_response
from app.extensions.responses.store import ResponseStore
from app.extensions.responses.stored_response import StoredResponse

EVENT_FACTOR = 2
"""Memory of stored events per byte of their text, which is a copy for a moment."""


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
        # The claim of the request is kept after its client has left, and has the events, too.
        claim = context.claim

        def emit(output: EngineOutput) -> None:
            if stored.is_over:
                return
            events = writer.chunk(output)
            is_over = type(output) is Failed or (
                type(output) is Tokens and output.finish is not None
            )
            if claim is not None and not is_over and stored.events is not None:
                try:
                    claim.grow(EVENT_FACTOR * len(events))
                except (MemoryFullError, MemoryExceededError) as error:
                    events += writer.chunk(Failed(output.index, as_api_error(error)))
                    is_over = True
                    if stored.abort is not None:
                        stored.abort()
            if not is_over:
                stored.append_events(events)
                return
            stored.append_events(events + writer.closing(), is_over=True)
            self.store.update_size(stored)
            if claim is not None:
                claim.release()

        handle = self.engine.submit(requests, emit)
        if stored.is_over:
            handle.abort()
        else:
            stored.abort = handle.abort
        self.store.store(stored)
        if stored.events is None:
            return json_response(initial_body, 200, self.headers)
        return Response(stored.follow(0, context.connection), 200, self.headers, EVENT_STREAM)
