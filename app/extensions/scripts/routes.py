"""Routes of rules for replies: counts of rules from files, and rules that are set at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from msgspec import Meta, Struct

from app.core.api.admin import json_body
from app.core.api.peer_ranks import PeerRanks
from app.core.protocol.decoding import decode_query
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, sentence
from app.core.server.http.route import ANY_OBJECT, Route, RouteDocs, action

if TYPE_CHECKING:
    from app.extensions.scripts.added_rules import AddedRule, AddedRules
    from app.extensions.scripts.script_set import ScriptSet

RULES = "/admin/script/rules"
MAX_SCOPE_LENGTH = 256
"""Most characters of a scope; the journal stores no more."""


class RulesQuery(Struct, forbid_unknown_fields=True):
    """Query of rules that are set at run time."""

    scope: Annotated[str, Meta(max_length=MAX_SCOPE_LENGTH)] | None = None
    """The value of a header; empty for the rules without a scope."""
    owner: Annotated[str, Meta(max_length=MAX_SCOPE_LENGTH)] | None = None
    """The test that sets rules of a scope, which no other test may then do."""
    id: int | None = None
    ranks: str = ""

    def selects(self, rule: AddedRule) -> bool:
        """Returns whether the rule has the scope and the id of the query, where it names them."""
        return self.scope in (None, rule.scope or "") and self.id in (None, rule.id)


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
    open_book: Callable[[], ScriptSet], body: BodyLimits, siblings: PeerRanks
) -> list[Route]:
    """Returns the routes of rules."""

    def rows(rules: Iterable[AddedRule]) -> object:
        return {"rules": [rule.row() for rule in rules]}

    def show(context: RequestContext) -> object:
        """The rules that were set at run time, with their counts."""
        query = decode_query(context.query(), RulesQuery)
        book = open_book()
        book.on_change()  # a strict request is then an error, even if there are no rules
        rules = [rule for rule in book.added.rules if query.selects(rule)]
        return siblings.answers(context, rows(rules))

    def add(context: RequestContext) -> object:
        """Sets rules at run time, in a file's form: PUT replaces those of `scope`, POST appends."""
        query = decode_query(context.query(), RulesQuery)
        data = body.read(context)
        book = open_book()
        added = _add_rules(book.added, data, query, replaces=context.method == "PUT")
        book.on_change()
        return siblings.answers(context, rows(added), data)

    def remove(context: RequestContext) -> object:
        """Removes the runtime rules, or only rules with a `scope` or `id`; returns the others."""
        query = decode_query(context.query(), RulesQuery)
        book = open_book()
        book.added.use([rule for rule in book.added.rules if not query.selects(rule)])
        book.on_change()
        return siblings.answers(context, rows(book.added.rules))

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
    rules: AddedRules, data: bytes, query: RulesQuery, *, replaces: bool
) -> Sequence[AddedRule]:
    """Adds the rules of a JSON document to `rules`, and returns them.

    With `replaces`, they replace the rules of the query's scope.

    Raises:
        ApiError: 400 for an invalid document or rule, or one that can never answer; 409 if another
            test uses the scope.
    """
    document = json_body(data, dict[str, object])
    if "rules" not in document:
        document = {"rules": [document]}
    scope = query.scope or None
    if scope is not None:
        _check_scope(scope)
    try:
        first = 1 if replaces else rules.next_number(scope)
        added = rules.read(document, scope, query.owner, first=first)
        _check_owner(rules.rules, scope, query.owner)
        remaining = list(rules.rules)
        if replaces:
            remaining = [rule for rule in remaining if rule.scope != scope]
        rules.use([*remaining, *added], new=added)
    except ValueError as error:
        raise bad_request(sentence(error)) from None
    return added


def _check_scope(scope: str) -> None:
    """Raises `ApiError` (400) for a scope that clients cannot send as a header."""
    if not scope.isascii() or not scope.isprintable() or scope != scope.strip():
        raise bad_request(
            f"The scope {scope[:40]!r} cannot be used as a header value: it must be "
            "printable ASCII."
        )


def _check_owner(rules: Iterable[AddedRule], scope: str | None, owner: str | None) -> None:
    """Raises `ApiError` (409) if another test has set rules of the scope."""
    if scope is None or owner is None:
        return
    for rule in rules:
        if rule.scope == scope and rule.owner not in (None, owner):
            message = (
                f"The scope {scope!r} is in use by {rule.owner}; give each test its own scope, or "
                f"remove the old rules with DELETE {RULES}?scope={quote(scope)}."
            )
            raise ApiError(409, "ConflictError", message)
