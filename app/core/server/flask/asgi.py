"""The answer to ASGI servers (uvicorn, hypercorn, daphne): one line, not a traceback per request.

`AsgiRefusal` fails the startup of the lifespan protocol, and uvicorn ends. A server without this
protocol gets status 500 for each request, and logs the line.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

log = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

REFUSAL = (
    "this is a WSGI application, which an ASGI server cannot serve: "
    "start it with understudy run or gunicorn wsgi:app (docs/servers.md)"
)


class AsgiRefusal:
    """Refuses one connection of an ASGI server, or its startup.

    The instance is an ASGI 2 application.
    """

    def __init__(self, scope: Scope) -> None:
        self._type = scope["type"]

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Answers one event of the server."""
        await receive()
        if self._type == "lifespan":
            await send({"type": "lifespan.startup.failed", "message": REFUSAL})
        elif self._type == "websocket":
            await send({"type": "websocket.close", "code": 1011})
        else:
            log.error(REFUSAL)
            await self._respond(send)

    async def _respond(self, send: Send) -> None:
        body = f"{REFUSAL}\n".encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": body})
