"""What a call knows of the connection that it is made on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from app.http.rpc import RpcResponse
from app.server.fast.path import FastPath
from app.server.http2.outbox import Outbox
from app.server.http2.turns import Chores

P = ParamSpec("P")
CallT = TypeVar("CallT")


class CallConnection(Protocol[CallT]):
    """See `Http2Connection`; its calls are of the type `CallT`."""

    path: FastPath
    outbox: Outbox
    address: tuple[str, int]
    buffered: int
    most_message_bytes: int
    most_buffered_bytes: int
    chores: Chores
    hungry: dict[CallT, None]
    stalled: dict[CallT, None]

    def ask_soon(self, call: CallT) -> None: ...

    def forget_call(self, call: CallT) -> None: ...

    def guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None: ...

    def response_to(self, error: Exception) -> RpcResponse: ...

    def close(self) -> None: ...
