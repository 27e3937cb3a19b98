"""Routes of rules for replies: counts of rules from files, and rules that are set at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from app.serving.api.admin.server import ANY_OBJECT, PeerRanks, action, json_body
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.route import Route, RouteDocs
from app.serving.protocol.decoding import decode_query

if TYPE_CHECKING:
    from app.serving.scripts.script_set import AddedRule, ScriptSet

RULES = "/admin/script/rules"


class RulesQuery(Struct, forbid_unknown_fields=True):
    scope: str | None = None
    id: int | None = None
    ranks: str = ""


def script_routes(book: ScriptSet, siblings: PeerRanks) -> list[Route]:

    def report(context: RequestContext) -> object:
        """Number of answers of each rule of each script."""
        return siblings.answers(context, book.report())

    def begin_anew(context: RequestContext) -> object:
        """Restarts the counts of all rules, for the next test."""
        book.restart()
        return siblings.answers(context, book.report())

    return [action("GET /admin/script", report), action("DELETE /admin/script", begin_anew)]


def rule_routes(
    open_book: Callable[[], ScriptSet],
    changed: Callable[[], None],
    body: BodyLimits,
    siblings: PeerRanks,
) -> list[Route]:
    """Returns the routes. `changed` is called after each change of rules."""

    def rows(rules: Iterable[AddedRule]) -> object:
        return {"rules": [each.row() for each in rules]}

    def show(context: RequestContext) -> object:
        """The rules that were set at run time, with their counts."""
        scope = decode_query(context.query(), RulesQuery).scope
        added = open_book().added
        return siblings.answers(
            context, rows(each for each in added if scope in (None, each.scope))
        )

    def add(context: RequestContext) -> object:
        """Sets rules at run time, in a file's form:

        PUT replaces those of the `scope`, POST appends.
        """
        query, data = decode_query(context.query(), RulesQuery), body.read(context)
        book, document = open_book(), json_body(data, dict[str, object])
        if "rules" not in document:
            document = {"rules": [document]}
        try:
            added = book.read_rules(document, query.scope)
            replaced = query.scope if context.method == "PUT" else ()
            book.use_rules([*(each for each in book.added if each.scope != replaced), *added])
        except ValueError as error:
            raise bad_request(f"{str(error).rstrip('.')}.") from None
        changed()
        return siblings.answers(context, rows(added), data)

    def remove(context: RequestContext) -> object:
        """Removes all rules of run time, those of a `scope`, or the one with this `id`; shows the
        others.
        """
        query, book = decode_query(context.query(), RulesQuery), open_book()
        gone = {
            it.id
            for it in book.added
            if query.scope in (None, it.scope) and query.id in (None, it.id)
        }
        book.use_rules([each for each in book.added if each.id not in gone])
        changed()
        return siblings.answers(context, rows(book.added))

    docs = RouteDocs(query=RulesQuery)
    add_docs = RouteDocs(
        body=(ANY_OBJECT,),
        example={"rules": [{"when": {"message": "hi"}, "then": {"text": "Hello."}}]},
        query=RulesQuery,
    )
    return [
        action(f"GET {RULES}", show, docs),
        action(f"PUT {RULES}", add, add_docs),
        action(f"POST {RULES}", add, add_docs),
        action(f"DELETE {RULES}", remove, docs),
    ]
