"""GET /admin/script: which rule of which script has answered how often."""

from __future__ import annotations

from app.api.admin.config import PeerRanks
from app.http.context import RequestContext
from app.http.response import Response, json_response
from app.http.route import Route, get
from app.script.book import ScriptBook


def routes(book: ScriptBook, siblings: PeerRanks) -> list[Route]:
    """The report of `book`, and how to begin a new one; with `?ranks=all` of all ranks."""

    def script(context: RequestContext) -> Response:
        """Which rule of which script has answered how often."""
        return json_response(siblings.answers(context, book.report()))

    def begin_anew(context: RequestContext) -> Response:
        """All rules count from one again, for the next test."""
        book.restart()
        return json_response(siblings.answers(context, book.report()))

    return [
        get("/admin/script", script),
        Route(methods=("DELETE",), path="/admin/script", handle=begin_anew),
    ]
