"""Routes of rules for replies: counts of rules from files, and rules that are set at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from app.core.api.admin import json_body
from app.core.api.peer_ranks import PeerRanks
from app.core.protocol.decoding import decode_query
from app.core.server.http.context import BodyLimits, RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.route import ANY_OBJECT, Route, RouteDocs, action

if TYPE_CHECKING:
    from app.extensions.scripts.script_set import AddedRule, ScriptSet

RULES = "/admin/script/rules"


class RulesQuery(Struct, forbid_unknown_fields=True):
    """Query of rules that are set at run time."""

    scope: str | None = None
    id: int | None = None
    ranks: str = ""

    def selects(self, rule: AddedRule) -> bool:
        """Returns whether the rule has the scope and the id of the query, where it names them."""
        return self.scope in (None, rule.scope) and self.id in (None, rule.id)


def script_routes(book: ScriptSet, siblings: PeerRanks) -> list[Route]:
    """Returns the routes that report and restart the counts of rules."""

    def report(context: RequestContext) -> object:
        """Number of answers of each rule of each script."""
        return siblings.answers(context, book.report())

    def restart_counts(context: RequestContext) -> object:
        """Restarts the counts of all rules, for the next test."""
        book.restart()
        return siblings.answers(context, book.report())

    return [
        action("GET /admin/script", report),
        action("DELETE /admin/script", restart_counts),
    ]


def rule_routes(
    open_book: Callable[[], ScriptSet],
    changed: Callable[[], None],
    body: BodyLimits,
    siblings: PeerRanks,
) -> list[Route]:
    """Returns the routes of rules. `changed` is called after each change of rules."""

    def rows(rules: Iterable[AddedRule]) -> object:
        return {"rules": [rule.row() for rule in rules]}

    def show(context: RequestContext) -> object:
        """The rules that were set at run time, with their counts."""
        scope = decode_query(context.query(), RulesQuery).scope
        rules = [rule for rule in open_book().added if scope in (None, rule.scope)]
        return siblings.answers(context, rows(rules))

    def add(context: RequestContext) -> object:
        """Sets rules at run time, in a file's form: PUT replaces those of `scope`, POST appends."""
        scope = decode_query(context.query(), RulesQuery).scope
        data = body.read(context)
        added = _add_rules(open_book(), data, scope, replaces=context.method == "PUT")
        changed()
        return siblings.answers(context, rows(added), data)

    def remove(context: RequestContext) -> object:
        """Removes the runtime rules, or only rules with a `scope` or `id`; returns the others."""
        query = decode_query(context.query(), RulesQuery)
        book = open_book()
        book.use_rules([rule for rule in book.added if not query.selects(rule)])
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


def _add_rules(
    book: ScriptSet, data: bytes, scope: str | None, *, replaces: bool
) -> Sequence[AddedRule]:
    """Adds the rules of a JSON document to `book`, and returns them.

    With `replaces`, they replace the rules of `scope`.

    Raises:
        ApiError: 400 for an invalid document or rule.
    """
    document = json_body(data, dict[str, object])
    if "rules" not in document:
        document = {"rules": [document]}
    try:
        added = book.read_rules(document, scope)
        remaining = list(book.added)
        if replaces:
            remaining = [rule for rule in remaining if rule.scope != scope]
        book.use_rules([*remaining, *added])
    except ValueError as error:
        raise bad_request(f"{str(error).rstrip('.')}.") from None
    return added
