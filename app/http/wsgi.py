"""A WSGI environ as a `RequestContext`.

The one key of ours in an environ is `CONTEXT`: our worker puts the context there, so that server and
application speak of the same one. Under any other worker the application makes it itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from app.http.connection import Connection
from app.http.context import RequestContext

CONTEXT = "understudy.context"
Environ = Mapping[str, Any]
_BARE = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}


def headers_of(environ: Environ) -> dict[str, str]:
    """The headers in a WSGI environ, by lower-case names, in their order.

    Copied, because an environ that holds a context that holds the environ is cyclic garbage.
    """
    headers = {}
    for key, value in environ.items():
        if key.startswith("HTTP_"):
            headers[_name(key)] = value
        elif key in _BARE and value:
            headers[_BARE[key]] = value
    return headers


@lru_cache(maxsize=256)
def _name(key: str) -> str:
    return key[5:].replace("_", "-").lower()


def ends_with_connection(environ: Environ) -> bool:
    """True if an answer of unknown length ends where its connection does."""
    return bool(environ.get("SERVER_PROTOCOL") == "HTTP/1.0")


def environ_of(context: RequestContext) -> dict[str, object]:
    """What an access log looks for in an environ, of a request that has none."""
    path, _, query = context.target.partition("?")
    named = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in context.headers.items()}
    return {
        **named,
        "REMOTE_ADDR": context.client,
        "REQUEST_METHOD": context.method,
        "RAW_URI": context.target,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": context.http_version,
        CONTEXT: context,
    }


def context_of(
    environ: Environ, arrival_s: float | None = None, ended: Callable[[], None] | None = None
) -> RequestContext:
    """The context of a request that arrived at `arrival_s` (monotonic seconds; now when not given).

    `ended`: see `Connection`. Without a gevent socket (test clients) there is no connection.
    """
    scheme = environ["wsgi.url_scheme"]
    path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
    sock: Any = environ.get("gunicorn.socket")
    query = environ.get("QUERY_STRING", "")
    context = RequestContext(
        environ["REQUEST_METHOD"],
        path,
        environ.get("RAW_URI") or (f"{path}?{query}" if query else path),
        headers_of(environ),
        environ.get("REMOTE_ADDR") or "",
        time.monotonic() if arrival_s is None else arrival_s,
        source=environ["wsgi.input"],
        connection=Connection(sock, ended, scheme == "http", ends_with_connection(environ))
        if hasattr(sock, "_sock")
        else None,
        http_version=environ.get("SERVER_PROTOCOL", "HTTP/1.1"),
        scheme=scheme,
        host=environ.get("HTTP_HOST", ""),
    )
    context.bound_to = environ.get("SERVER_NAME", "")
    return context
