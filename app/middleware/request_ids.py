"""Every request has an id: the client's X-Request-Id, or a fresh one. Every log line tells it."""

from __future__ import annotations

from collections.abc import Callable

from app.http.context import RequestContext
from app.http.response import Response
from app.logs import request_id
from app.middleware.stack import Middleware

HEADER = "x-request-id"


class RequestIds(Middleware):
    """Names each request; with `answered`, its id is told in an X-Request-Id header. `fresh_id` draws ids."""

    def __init__(self, fresh_id: Callable[[], str], answered: bool) -> None:
        self._fresh_id = fresh_id
        self._answered = answered

    def begin(self, context: RequestContext) -> None:
        name = context.headers.get(HEADER) or self._fresh_id()
        context.request_id = name
        request_id.set(name)

    def end(self, context: RequestContext, response: Response) -> None:
        if self._answered:
            response.headers["X-Request-Id"] = context.request_id
