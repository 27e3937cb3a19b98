"""Calls of gRPC: what is left of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import gevent
from h2.stream import StreamState

from app.core.server.http.rpc import RpcMethod, RpcResponse, framed
from app.extensions.grpc.http2.rpc_call import RpcCall
from app.extensions.grpc.message_feed import MessageFeed

if TYPE_CHECKING:
    from app.core.server.http.context import RequestContext

PATH = "/vllm.grpc.engine.VllmEngine/Generate"


class Mark:
    """Part of a request, which goes with it."""


def nothing(*_: object, **__: object) -> None:
    """Keeps no argument, unlike a mock."""


def connection() -> Any:
    """A client that is always ready, of a server without middleware."""
    middleware = SimpleNamespace(begin=nothing, end=nothing)
    path = SimpleNamespace(
        app=None,
        logs_access=False,
        middleware=middleware,
        new_id=str,
        turns=SimpleNamespace(wait=nothing),
    )
    return SimpleNamespace(
        address=("127.0.0.1", 1),
        add_buffered=nothing,
        buffered=0,
        cost=None,
        lags=False,
        max_buffered_bytes=1 << 20,
        max_message_bytes=1 << 20,
        path=path,
        remove_call=nothing,
        run_guarded=lambda work, *arguments: work(*arguments),
        send_headers=nothing,
    )


def test_canceled_call_goes_with_its_request_without_a_collection_of_cycles() -> None:
    """A worker seldom collects old cycles, and a request claims memory until it is dropped."""
    requests: list[weakref.ref[Mark]] = []

    def endless() -> Iterator[bytes]:
        while True:
            gevent.sleep(10.0)
            yield b""

    def handle(context: RequestContext) -> RpcResponse:
        mark = Mark()
        context.keep(mark)
        requests.append(weakref.ref(mark))
        return RpcResponse(MessageFeed(endless()))

    state = SimpleNamespace(state=StreamState.HALF_CLOSED_REMOTE)
    stream = cast(Any, SimpleNamespace(stream_id=1, state_machine=state))
    method = RpcMethod(path=PATH, handle=handle)
    gc.disable()
    try:
        call = RpcCall(connection(), stream, method=method, headers={":path": PATH}, size=100)
        call.receive(framed(b""), is_end=True)
        gevent.sleep(0.01)
        assert requests[0]() is not None
        call.end()
        del call
        gevent.sleep(0.01)
        assert requests[0]() is None
    finally:
        gc.enable()
