"""From engine requests to a response:

at once, as a promise, or as a stream; and nothing left behind.
"""

import gc
from collections.abc import Iterable
from typing import Any

import gevent
import gevent.socket
import pytest

from app.core.api.responder import Responder, ServerLoad
from app.core.engine.outputs import EngineOutput, Failed, Tokens
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.response import CLIENT_GONE, PendingResponse, Response
from tests.application import request
from tests.core.engine.harness import Harness, engine_request

HEADERS = {"x-inference-pod": "pod-1"}


class Texts:
    """Writes the texts of all tokens; `fails` when it is to write a body."""

    keeps_alive = False

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.taken: list[EngineOutput] = []

    def chunk(self, event: EngineOutput) -> bytes:
        return b"[failed]" if type(event) is Failed else self._text([event])

    def closing(self) -> bytes:
        return b"[end]"

    def collect(self, event: EngineOutput) -> None:
        self.taken.append(event)

    def body(self) -> bytes:
        if self.fails:
            raise UnicodeError("cannot be written")
        return self._text(self.taken)

    def _text(self, events: Iterable[EngineOutput]) -> bytes:
        return "".join(
            text for event in events if type(event) is Tokens for text in event.texts
        ).encode()


class Responding:
    """A responder of a house whose tokens come a second apart, the first after two; or all at once."""

    def __init__(self, at_once: bool = False, **limits: Any) -> None:
        latency = {} if at_once else {"inter_token_latency": 1.0, "time_to_first_token": 2.0}
        self.harness = Harness(mode="echo", **latency, **limits)
        self.load = ServerLoad(tracked=True)
        self.responder = Responder(self.harness.engine, self.load, HEADERS, 0.0)

    def soon(self, stream: bool = False, writer: Texts | None = None, choices: int = 1) -> Any:
        now_s = self.harness.clock.now()
        requests = [engine_request(index=k, n=choices, arrival_s=now_s) for k in range(choices)]
        return self.responder.respond_soon(requests, writer or Texts(), stream, request())


def test_immediate_reply_is_returned_as_a_complete_response() -> None:
    at_once = Responding(at_once=True)
    response = at_once.soon()
    assert isinstance(response, Response) and isinstance(response.body, bytes)
    assert response.body and b"What goes in comes out.".startswith(response.body)
    assert list(response.headers.items())[:2] == [
        *HEADERS.items(),
        ("Content-Type", "application/json"),
    ]
    assert at_once.load.count == 0 and at_once.harness.is_idle()


def test_pending_response_resolves_after_its_last_choice_unless_aborted() -> None:
    for leaves in (False, True):
        paced = Responding()
        came: list[Response | Exception] = []
        pending = paced.soon(choices=2)
        assert isinstance(pending, PendingResponse)
        pending.on_resolve(came.append)
        paced.harness.clock.advance(5)
        assert not came and paced.load.count == 1
        if leaves:
            for _ in range(2):
                pending.abort()
            assert paced.harness.is_idle() and paced.load.count == 0
        paced.harness.clock.advance(20)
        assert paced.load.count == 0 and paced.harness.is_idle()
        statuses = [response.status for response in came if isinstance(response, Response)]
        assert statuses == ([] if leaves else [200])


def test_disconnected_client_gets_no_response() -> None:
    paced = Responding()
    server, client = gevent.socket.socketpair()
    with server:
        client.close()
        context = request(connection=ClientConnection(server))
        response = paced.responder.respond([engine_request()], Texts(), False, context)
        assert (response.status, response.body) == (CLIENT_GONE, b"")
        assert paced.harness.is_idle() and paced.load.count == 0


@pytest.mark.parametrize("end", ["over", "left", "failed"])
@pytest.mark.usefixtures("few_objects_to_collect")
def test_pending_response_leaves_no_cyclic_garbage(end: str) -> None:
    paced = Responding()

    def serve() -> None:
        came: list[object] = []
        pending = paced.soon(writer=Texts(fails=end == "failed"))
        pending.on_resolve(lambda outcome: came.append((pending, outcome)))
        if end == "left":
            pending.abort()
        paced.harness.clock.advance(20)
        if isinstance(pending.outcome, Exception):
            pending.outcome.__traceback__ = None  # as `forget_frames` does when it is answered
        del came[:]

    serve()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            serve()
        assert gc.collect() < 10
    finally:
        gc.enable()
