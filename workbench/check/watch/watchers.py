"""Checks what watches vLLM: `check_watchers` finds the queries of documents, and reads each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from config.declaration import UsageError, install, missing
from workbench.check.documents import Value
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding
from workbench.check.watch.catalog import Catalog
from workbench.check.watch.promql import (
    MAX_LENGTH,
    Expression,
    PromqlError,
    Selector,
    names_in,
    operators_in,
    read_promql,
)
from workbench.check.watch.queries import VLLM, Adapted, Query, find_queries
from workbench.check.watch.rules import QueryRules, Surroundings, asks_for_router

if TYPE_CHECKING:
    from workbench.check.watch.live import LiveMetrics

MAX_QUERIES = 2_000
"""Most different queries of all documents, and most names in other texts."""
MAX_ALL_OPERATORS = 40_000
"""Most operators of all queries; the parser's time grows with them."""


@dataclass(slots=True)
class _Input:
    """The queries of all documents, and the results of reading them."""

    queries: list[Query] = field(default_factory=list)
    names: list[Query] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)
    adapted: set[str] = field(default_factory=set)
    read: dict[str, Expression] = field(default_factory=dict)


def check_watchers(
    documents: Iterable[Value],
    *,
    version: str,
    upgrade_to: str = "",
    live: LiveMetrics | None = None,
) -> Iterator[Finding]:
    """Yields the findings of all queries in the documents.

    `version` and `upgrade_to` are versions of vLLM such as 0.32; of the latter, only findings that
    the former does not have are reported.

    Raises:
        UsageError: There are too many queries, or too large ones.
    """
    texts = _collect(documents)
    if not texts.queries and not texts.names:
        return
    yield from _read(texts)
    router_files = set()
    for query in texts.queries:
        if asks_for_router(texts.read[query.text]):
            router_files.add(query.value.file)
    surroundings = Surroundings(
        recorded=frozenset(texts.recorded),
        adapted=frozenset(texts.adapted),
        router_files=frozenset(router_files),
    )
    catalog = Catalog(version)
    findings = list(_check(texts, QueryRules(catalog, surroundings)))
    yield from findings
    if upgrade_to:
        seen = {_key(each) for each in findings}
        for each in _check(texts, QueryRules(Catalog(upgrade_to), surroundings)):
            if _key(each) not in seen:
                yield each
    if live is not None:
        # One finding is enough for a name that the version does not have.
        places = {Place(each.file, each.line, each.column) for each in findings}
        for each in _try(texts, live, catalog):
            if Place(each.file, each.line, each.column) not in places:
                yield each


def _collect(documents: Iterable[Value]) -> _Input:
    texts = _Input()
    different: set[str] = set()
    operators = 0
    for document in documents:
        for each in find_queries(document):
            if isinstance(each, Adapted):
                texts.adapted.add(each.name)
                continue
            if each.records:
                texts.recorded.add(each.records)
            if each.form != "promql":
                texts.names.append(each)
            elif VLLM in each.text:
                texts.queries.append(each)
                if each.text not in different:
                    different.add(each.text)
                    operators += operators_in(each.text)
            is_large = len(different) > MAX_QUERIES or operators > MAX_ALL_OPERATORS
            if is_large or len(texts.names) > MAX_QUERIES:
                raise UsageError(f"{document.file}: the queries are too many or too large")
    return texts


def _read(texts: _Input) -> Iterator[Finding]:
    """Parses each query once, and yields what cannot be parsed."""
    has_parser = not missing("check")
    if texts.queries and not has_parser:
        message = f"PromQL is searched for names only; for all rules: {install('check')}"
        yield finding("W814", texts.queries[0].place(), message)
    unread: dict[str, str] = {}
    for query in texts.queries:
        if query.text not in texts.read:
            texts.read[query.text] = _expression(query.text, has_parser, unread)
        if query.text in unread:
            message = f"only the names of metrics are checked: {unread[query.text]}"
            yield finding("W813", query.place(), message)


def _expression(text: str, has_parser: bool, unread: dict[str, str]) -> Expression:
    """Returns what a query asks for; its names only if it cannot be parsed, with the reason."""
    if has_parser:
        try:
            return read_promql(text)
        except PromqlError as error:
            unread[text] = str(error)
    names = names_in(text) if len(text) <= MAX_LENGTH else ()
    return Expression([Selector(name, ()) for name in names])


def _check(texts: _Input, rules: QueryRules) -> Iterator[Finding]:
    seen: set[tuple[str, str, int, int, str]] = set()
    for query in (*texts.queries, *texts.names):
        findings: Iterator[Finding] = iter(())
        if query.form == "name":
            findings = rules.check_name(query)
        elif query.form == "beginning":
            findings = rules.check_beginning(query)
        else:
            findings = rules.check(query, texts.read[query.text])
        for each in findings:
            if (*_key(each), each.message) not in seen:
                seen.add((*_key(each), each.message))
                yield each


def _try(texts: _Input, live: LiveMetrics, catalog: Catalog) -> Iterator[Finding]:
    for query in texts.queries:
        for selector in dict.fromkeys(texts.read[query.text].selectors):
            if selector.name not in texts.recorded:
                yield from live.check(query, selector, catalog)
    for query in texts.names:
        if query.form == "beginning":
            continue
        yield from live.check(query, Selector(query.text, ()), catalog)


def _key(each: Finding) -> tuple[str, str, int, int]:
    return each.code, each.file, each.line, each.column
