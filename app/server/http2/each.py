"""A call whose messages are answered one by one, as they come: reflection."""

from __future__ import annotations

import time

from app.http.response import CLIENT_GONE
from app.http.rpc import PREFIX_BYTES, RpcMethod, RpcResponse
from app.server.http2.call import RpcCall
from app.server.http2.frames import window_update
from app.server.http2.owner import CallConnection

MOST_EACH_BYTES = 1 << 16
"""Of messages that wait for an answer. No more is answered than the client has room for."""


class EachCall(RpcCall):
    """Answers a message a turn, in the hub; for the middleware all of them are one request."""

    __slots__ = ("_each",)

    def __init__(
        self,
        connection: CallConnection[RpcCall],
        id: int,
        window: int,
        method: RpcMethod,
        headers: dict[str, str],
        size: int,
    ) -> None:
        super().__init__(connection, id, window, method, headers, size)
        self._each = method
        self._most_bytes = MOST_EACH_BYTES

    def _arrived(self) -> None:
        self.lag()

    def lag(self) -> None:
        """There may be a message to answer, or room for an answer."""
        self._connection.ask_soon(self)

    def ask(self) -> bool:
        """Answer a message; whether there is another one."""
        if self._may_answer and (self._body or self.has_request):
            self._connection.guarded(self._answer_next)
        return self._may_answer and (self.has_request or len(self._body) >= self._end_of_message)

    @property
    def _may_answer(self) -> bool:
        return self.is_open and not self.stalled

    def _answer_next(self) -> None:
        """Answer the next message of several, or end with the last one."""
        message = self._message()
        if message is None:
            if self.is_open and self.has_request:
                self._end(RpcResponse())
            return
        self._outbox.put(window_update(self.id, PREFIX_BYTES + len(message)))
        self.since_s = time.monotonic()
        context = self._new_context(message)
        try:
            if self._context is None:
                self._context = context
                if (refusal := self._connection.path.middleware.begin(context)) is not None:
                    self._end(refusal)
                    return
            data = bytes(self._each.handle(context).body)  # type: ignore[arg-type]
        except Exception as error:
            self._end(self._connection.response_to(error))
            return
        self._open(RpcResponse())
        self.write(data)

    def _abandon(self) -> None:
        if self._context is not None and self._response is None:
            self._response = RpcResponse(status=CLIENT_GONE)
            self._connection.path.middleware.end(self._context, self._response)
        super()._abandon()
