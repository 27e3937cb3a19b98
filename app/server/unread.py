"""What becomes of the rest of a request's body that nobody read.

gunicorn reads it to its end before the next request, a kilobyte at a time, however long it is. Here a little
is read; after more, the connection is closed, lingering a moment, so that a client that still sends gets to
read the answer (RFC 9112 section 9.6).
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

import gevent
from gunicorn.http.body import ChunkedReader, LengthReader

LITTLE_BYTES = 1 << 17
LITTLE_S = 0.5
"""So much is read on a connection that is kept, within this time."""
LINGER_BYTES = 1 << 20
LINGER_S = 1.0
"""So much is thrown away on one that is closed, within this time."""


def has_much_unread(req: Any) -> bool:
    """True when more of the body of gunicorn's `req` is left than is worth reading."""
    body = getattr(req, "body", None)
    if body is None:
        return False
    reader = body.reader
    if isinstance(reader, LengthReader):
        return bool(reader.length > LITTLE_BYTES)
    return isinstance(reader, ChunkedReader) and reader.parser is not None


def discard_body(parser: Any) -> bool:
    """Read the little that is left of a body; False when it is too much, or does not come."""
    if has_much_unread(parser.mesg):
        return False
    return bool(parser.finish_body(time.monotonic() + LITTLE_S, LITTLE_BYTES + 1))


def linger(client: Any) -> None:
    """Greenlet: say that nothing more comes, and read for a moment what the client still sends."""
    thrown_away = 0
    with suppress(OSError), gevent.Timeout(LINGER_S, False):
        client.shutdown(socket.SHUT_WR)
        while thrown_away < LINGER_BYTES and (data := client.recv(LITTLE_BYTES)):
            thrown_away += len(data)
