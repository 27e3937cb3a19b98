"""Routes of the journal, for tests (docs/testing.md)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from app.core.api.peer_ranks import PeerRanks
from app.core.protocol.decoding import decode_query
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.route import Route, RouteDocs, action
from app.extensions.journal.journal import Journal


class JournalQuery(Struct, forbid_unknown_fields=True):
    """Query of the journal."""

    route: str | None = None
    contains: str = ""
    scope: str | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    ranks: str = ""


def journal_routes(journal: Journal, siblings: PeerRanks, release: str) -> list[Route]:
    """Returns the routes of the journal; `release` is the simulated version of vLLM."""

    def entries(context: RequestContext) -> object:
        """The last requests with their replies, by `route`, text in the body, and `scope`."""
        query = decode_query(context.query(), JournalQuery)
        if not journal.active:
            raise bad_request("The journal is disabled; start the server with --journal 1000.")
        rows = journal.rows(query.route, query.contains, query.scope, query.limit)
        return siblings.answers(context, {"vllm_version": release, "entries": rows})

    def forget(context: RequestContext) -> object:
        """Clears the journal, or the entries of a `scope`, for the next test."""
        journal.clear(decode_query(context.query(), JournalQuery).scope)
        return siblings.answers(context, {"vllm_version": release, "entries": []})

    docs = RouteDocs(query=JournalQuery)
    return [
        action("GET /admin/journal", entries, docs),
        action("DELETE /admin/journal", forget, docs),
    ]
