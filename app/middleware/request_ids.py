"""The id of a request in its answer, where the settings ask for it."""

from __future__ import annotations

from app.http.context import RequestContext
from app.http.response import Response
from app.middleware.stack import Middleware


class RequestIds(Middleware):
    """Tells the id of each request in an X-Request-Id header, if it is to be `answered`."""

    def __init__(self, answered: bool) -> None:
        self.active = answered

    def end(self, context: RequestContext, response: Response) -> None:
        response.headers["X-Request-Id"] = context.request_id
