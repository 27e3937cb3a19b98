"""The client whose request a greenlet serves, for layers that know no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from app.core.base.overload import ClientLeftError

if TYPE_CHECKING:
    from app.core.base.request_memory import Claim


class CallerConnection(Protocol):
    """The connection of a client; see `app.core.server.http.client_connection`."""

    @property
    def is_closed_by_client(self) -> bool:
        """True if the client has closed the connection."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` in the hub as soon as the client closes the connection."""

    def unwatch(self) -> None:
        """Ends `watch`."""


class Caller(Protocol):
    """A request, as the layers below HTTP see it."""

    client: str
    """Address of the client; may be empty."""
    connection: CallerConnection | None

    @property
    def claim(self) -> Claim | None:
        """The memory that the request has claimed; None if the server does not count it."""


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""The request that this greenlet serves."""


def current_connection() -> CallerConnection | None:
    """Returns the connection of this greenlet's client; None without one."""
    caller = current_caller.get()
    return None if caller is None else caller.connection


def check_client() -> None:
    """Raises ClientLeftError if the client of the request has disconnected."""
    connection = current_connection()
    if connection is not None and connection.is_closed_by_client:
        raise ClientLeftError


@contextmanager
def watched(connection: CallerConnection | None, gone: Callable[[], None]) -> Iterator[None]:
    """Calls `gone` in the hub when the client disconnects during the block."""
    if connection is not None:
        connection.watch(gone)
    try:
        yield
    finally:
        if connection is not None:
            connection.unwatch()


def claim_memory(size_bytes: int) -> None:
    """Claims memory for the request that this greenlet serves, until the request ends.

    Raises:
        MemoryFullError, MemoryExceededError: as `RequestMemory.reserve`.
    """
    caller = current_caller.get()
    claim = None if caller is None else caller.claim
    if claim is not None:
        claim.grow(size_bytes)
