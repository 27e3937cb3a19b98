"""Finds the entry of the journal for each request of an export: `match`."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from config import ConfigError
from workbench.judge.served import ServedRequest
from workbench.runs.tool_requests import Export, ToolRequest

NUMBERED_ID = re.compile(r"(.*?)(\d+)")


class Pair(NamedTuple):
    """A request as the tool and the server saw it."""

    tool: ToolRequest
    served: ServedRequest


class Matches(Struct):
    """The pairs, in the order of the export."""

    method: str
    """How the requests were found: by `id`, `number`, `text` or `order`."""
    pairs: list[Pair]
    not_served: list[ToolRequest]
    """Requests that the journal does not have."""
    not_reported: list[ServedRequest]
    """Requests within the time of the run that the export does not have."""
    outside: int = 0
    """Number of requests in the journal before and after the run."""


def match(path: str, export: Export, journal: Sequence[ServedRequest]) -> Matches:
    """Matches by ids; by texts or by order only where the export has no ids.

    Raises:
        ConfigError: No request can be matched, or not without guessing.
    """
    if any(request.ids for request in export.requests):
        method = "id"
        entries = _by_ids(export.requests, journal)
        if not entries:
            method = "text"
            entries = _by_texts(export.requests, journal)
        if not entries:
            raise ConfigError(
                f"{path}: none of the {len(export.requests)} requests are in the journal, which"
                f" has {len(journal)} other requests; the file and the journal belong to different"
                " runs"
            )
    elif any(request.index is not None for request in export.requests):
        method = "number"
        entries = _by_numbers(export.requests, journal)
    else:
        method = "order"
        entries = {}
    if not entries:
        method, entries = _without_ids(path, export.requests, journal)
    pairs = []
    not_served = []
    for position, request in enumerate(export.requests):
        if position in entries:
            pairs.append(Pair(request, entries[position]))
        else:
            not_served.append(request)
    matches = Matches(method, pairs, not_served, [])
    _add_missing(matches, journal)
    return matches


Entries = dict[int, ServedRequest]
"""Entries of the journal by the position of the request in the export."""


def _by_ids(requests: Sequence[ToolRequest], journal: Sequence[ServedRequest]) -> Entries:
    by_id: dict[str, ServedRequest] = {}
    counts = Counter(entry.id for entry in journal)
    for entry in journal:
        if counts[entry.id] == 1:
            by_id[entry.id] = entry
        if entry.response_id is not None:
            by_id[entry.response_id] = entry
    entries: Entries = {}
    used: set[int] = set()
    for position, request in enumerate(requests):
        for request_id in request.ids:
            candidate = by_id.get(request_id)
            if candidate is not None and id(candidate) not in used:
                entries[position] = candidate
                used.add(id(candidate))
                break
    return entries


def _by_numbers(requests: Sequence[ToolRequest], journal: Sequence[ServedRequest]) -> Entries:
    """Returns the entries whose ids have one prefix and the numbers of the requests.

    Of several prefixes, the one with most of the numbers is that of this run, and of equal ones
    the latest: a tool may have run twice.
    """
    groups: defaultdict[str, dict[int, ServedRequest]] = defaultdict(dict)
    for entry in journal:
        numbered = NUMBERED_ID.fullmatch(entry.id)
        if numbered and len(numbered[2]) < 10:
            groups[numbered[1]][int(numbered[2])] = entry
    positions = {request.index: position for position, request in enumerate(requests)}
    best: Entries = {}
    for group in groups.values():
        entries = {positions[index]: group[index] for index in group if index in positions}
        is_numbered = len(entries) > 1 or len(requests) == 1
        if is_numbered and len(entries) >= len(best):
            best = entries
    return best


def _by_texts(requests: Sequence[ToolRequest], journal: Sequence[ServedRequest]) -> Entries:
    """Returns the entries with the same replies, if all requests have different ones."""
    texts = Counter(request.text for request in requests if request.text)
    journal_texts = Counter(entry.text for entry in journal if entry.text)
    is_unique = all(count == journal_texts[text] == 1 for text, count in texts.items())
    if len(texts) != len(requests) or not is_unique:
        return {}
    by_text = {entry.text: entry for entry in journal}
    return {position: by_text[request.text] for position, request in enumerate(requests)}


def _without_ids(
    path: str, requests: Sequence[ToolRequest], journal: Sequence[ServedRequest]
) -> tuple[str, Entries]:
    """Matches by the texts of replies, or else by the order of sending.

    Raises:
        ConfigError: The texts differ, and so does the number of requests.
    """
    entries = _by_texts(requests, journal)
    if entries:
        return "text", entries
    if len(requests) != len(journal):
        raise ConfigError(
            f"{path}: none of the request IDs are in the journal, and the numbers of requests"
            f" differ ({len(requests)} in the file, {len(journal)} in the journal);"
            " send X-Request-Id (see docs/judge.md)"
        )

    def sending(position: int) -> float:
        return requests[position].send_s

    positions = sorted(range(len(requests)), key=sending)
    return "order", dict(zip(positions, journal, strict=True))


def _add_missing(matches: Matches, journal: Sequence[ServedRequest]) -> None:
    """Adds the entries without a pair: those between the first and the last pair, and the rest."""
    paired = {id(pair.served) for pair in matches.pairs}
    positions = [number for number, entry in enumerate(journal) if id(entry) in paired]
    if positions:
        between = journal[positions[0] : positions[-1] + 1]
        matches.not_reported = [entry for entry in between if id(entry) not in paired]
        matches.outside = len(journal) - len(between)
