"""The texts of a request take places in the engine: each waits, runs and is counted as a prompt is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gevent.event import Event as Bell
from msgspec.structs import replace

from app.api.builder import priority_of
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.pooling.scripted import Scripted
from app.engine.client import EngineClient, Handle
from app.engine.errors import Aborted
from app.engine.outputs import EngineOutput, Failed, Tokens
from app.engine.request import EngineRequest
from app.http.context import RequestContext
from app.http.response import CLIENT_GONE, Response, json_response
from app.pooling.numbers import TURN, Turns
from app.protocol.pooling import PoolingFields, TokenIds

AT_ONCE = 256
"""Texts of one request that run or wait at the same time; its others wait outside of the engine."""
GROUP = 16
"""Texts that are submitted together."""


def take_places(
    frontend: Frontend,
    context: RequestContext,
    asked: PoolingFields,
    meta: ResponseMeta,
    count: int,
    prompt: Callable[[int], TokenIds],
    scripted: Scripted,
) -> Response | None:
    """Sleep until the engine has been through `count` prompts; the answer if the client has gone by then.

    `scripted` may have them wait longer than the engine does.

    EngineError where there is no room for the first of them; the others come as soon as there is.
    """
    first = EngineRequest(
        request_id=meta.id,
        index=0,
        model=meta.model,
        prompt_ids=prompt(0),
        echo_text="",
        max_tokens=0,
        limited=False,
        arrival_s=context.arrival_s,
        adapter=meta.model if meta.model in frontend.builder.adapters else None,
        priority=priority_of(context, asked.priority),
        cache_salt=asked.cache_salt,
        together=count,
        observers=context.observers,
        delays=scripted.delays(context),
    )
    load, connection = frontend.responder.load, context.connection
    places = Places(frontend.responder.engine)
    load.begin()
    if connection is not None:
        connection.watch(places.leave)
    try:
        places.go_through(first, count, prompt)
    finally:
        load.end()
        if connection is not None:
            connection.unwatch()
        places.abort()
    return json_response(b"", CLIENT_GONE) if places.gone else None


class Places:
    """Has the engine go through prompts, as many at a time as there is room for."""

    def __init__(self, engine: EngineClient) -> None:
        self.gone = False
        """The client is not there any more."""
        self._engine = engine
        self._error: Exception | None = None
        self._handles: dict[int, Handle] = {}
        """Of the groups that are not over, by the index of their first text."""
        self._left: dict[int, int] = {}
        self._unfinished = 0
        self._bell = Bell()

    def go_through(self, first: EngineRequest, count: int, prompt: Callable[[int], TokenIds]) -> None:
        """Until all are over, one has failed, or the client has gone."""
        turns, start = Turns(), 0
        while start < count and not self._is_over():
            room = min(self._engine.room(first.adapter), AT_ONCE - self._unfinished, GROUP)
            if room <= 0 and self._unfinished:
                self._wait()
                continue
            stop = min(start + max(room, 1), count)
            self._submit([_of(first, index, prompt(index)) for index in range(start, stop)])
            start = stop
            turns.spend(TURN // 4)
        while self._unfinished and not self._is_over():
            self._wait()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """The client has gone."""
        self.gone = True
        self._bell.set()

    def abort(self) -> None:
        """End what is not over."""
        for handle in list(self._handles.values()):
            handle.abort()

    def _is_over(self) -> bool:
        return self.gone or self._error is not None

    def _wait(self) -> None:
        self._bell.clear()
        self._bell.wait()

    def _submit(self, group: Sequence[EngineRequest]) -> None:
        number = group[0].index
        self._left[number] = len(group)
        self._unfinished += len(group)

        def emit(output: EngineOutput) -> None:
            if type(output) is Failed:
                self._error = output.error
            elif type(output) is Tokens and output.finish is not None:
                if output.finish.reason == "abort":
                    self._error = Aborted()
            else:
                return
            self._one_less(number)

        try:
            handle = self._engine.submit(group, emit)
        except Exception:
            self._unfinished -= self._left.pop(number)
            raise
        if number in self._left:
            self._handles[number] = handle

    def _one_less(self, number: int) -> None:
        self._unfinished -= 1
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._handles.pop(number, None)
        self._bell.set()


def _of(first: EngineRequest, index: int, ids: TokenIds) -> EngineRequest:
    return first if index == 0 else replace(first, index=index, prompt_ids=ids)
