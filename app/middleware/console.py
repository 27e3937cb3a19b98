"""Tells the console of requests."""

from __future__ import annotations

from functools import partial

from app.console.bars import Origin, RequestBars
from app.http.context import RequestContext
from app.http.response import Response
from app.middleware.stack import Middleware

OURS = ("/admin", "/console")


class ConsoleWatch(Middleware):
    """Has each choice of each request told as a bar; and requests that are refused before there is one."""

    def __init__(self, bars: RequestBars) -> None:
        self._bars = bars

    def begin(self, context: RequestContext) -> None:
        if context.method == "POST" and not context.path.startswith(OURS):
            context.observers = (*context.observers, partial(self._bars.watch, Origin.of(context)))

    def end(self, context: RequestContext, response: Response) -> None:
        if response.status >= 400 and context.method == "POST" and not context.path.startswith(OURS):
            self._bars.refused(context, response.status)
