"""Passes an answer on, piece by piece as it comes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse

from app.load.connection import Connection

PIECE = 65536
"""Most bytes that are passed on at once; a piece is never waited for to become full."""


class Relay:
    """The body of an answer, for WSGI. It owns the connection to the pod; `close` may come at any time."""

    def __init__(self, connection: Connection, unwatch: Callable[[], None], done: Callable[[], None]) -> None:
        """`done` is called once, when it is over."""
        self._connection = connection
        self._unwatch = unwatch
        self._done = done
        self._over = False
        self._response: HTTPResponse | None = None

    def of(self, response: HTTPResponse) -> Relay:
        """The relay of this answer."""
        self._response = response
        return self

    def __iter__(self) -> Iterator[bytes]:
        """The pieces. ConnectionResetError when the answer breaks off: the client's is to break off, too."""
        response = self._response
        assert response is not None
        try:
            while piece := response.read1(PIECE):
                yield piece
        except (OSError, HTTPException, ValueError) as error:
            raise _broken(repr(error)) from error
        if response.length:
            raise _broken(f"{response.length} bytes are missing")

    def close(self) -> None:
        """Let go of the pod, which ends what it still does for this request."""
        if self._over:
            return
        self._over = True
        self._unwatch()
        self._connection.close()
        if self._response is not None:
            self._response.close()
        self._done()


def _broken(why: str) -> ConnectionResetError:
    # The server closes the connection without a word for this one errno, and without the end of the body.
    return ConnectionResetError(errno.ECONNRESET, f"the pod's answer broke off: {why}")
