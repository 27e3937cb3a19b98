"""Every request has an id: the client's X-Request-Id, or a fresh one. Every log line tells it."""

from __future__ import annotations

from random import Random

from app.http.context import RequestContext
from app.http.response import Response
from app.logs import request_id
from app.middleware.stack import Middleware

HEADER = "x-request-id"


class RequestIds(Middleware):
    """Names each request; with `answered`, its id is told in an X-Request-Id header. `rng` draws ids."""

    def __init__(self, rng: Random, answered: bool) -> None:
        self._rng = rng
        self._answered = answered

    def begin(self, context: RequestContext) -> None:
        name = context.headers.get(HEADER) or f"{self._rng.getrandbits(128):032x}"
        context.request_id = name
        request_id.set(name)

    def end(self, context: RequestContext, response: Response) -> None:
        if self._answered:
            response.headers["X-Request-Id"] = context.request_id
