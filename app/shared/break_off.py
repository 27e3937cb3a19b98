"""Ends the connection of a client in the middle of an answer."""

import errno
from typing import NoReturn

from app.core.server.http.client_connection import BrokenOffError, ClientConnection


def break_off(connection: ClientConnection | None) -> NoReturn:
    """Ends the connection at once, without TLS close_notify.

    Raises:
        BrokenOffError: Always; gunicorn handles it like a client that closed the connection.
    """
    if connection is not None:
        connection.shut()
    raise BrokenOffError(errno.ECONNRESET, "an injected fault closed the connection")
