"""Every request has an id: the client's X-Request-Id, or a fresh one. Every log line tells it."""

from __future__ import annotations

from typing import Any

from flask import Flask, request

from app.api.identity import Identity
from app.http.environ import REQUEST_ID
from app.http.response import Reply
from app.logs import request_id

HEADER = "HTTP_X_REQUEST_ID"


def init_request_ids(app: Flask, identity: Identity, answered: bool) -> None:
    """Name each request of `app`; with `answered`, tell its id in an X-Request-Id header."""
    wsgi_app = app.wsgi_app

    def named(environ: dict[str, Any], start_response: Any) -> Any:
        name = environ.get(HEADER) or identity.fresh_request_id()
        environ[REQUEST_ID] = name
        request_id.set(name)
        return wsgi_app(environ, start_response)

    app.wsgi_app = named  # type: ignore[method-assign]
    if answered:
        app.after_request(_tell)


def _tell(reply: Reply) -> Reply:
    reply.headers["X-Request-Id"] = request.environ[REQUEST_ID]
    return reply
