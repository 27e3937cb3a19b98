"""Requests that a server has received, and a readable report where a test expected other ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LINES, MOST_CHARACTERS = 30, 160
"""Most entries of a report, and characters of a text in it."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request and its reply, as `GET /admin/journal` shows them (docs/testing.md)."""

    id: str
    at: str
    """Arrival, ISO 8601 in UTC."""
    route: str
    model: str | None
    status: int | None
    """None until the answer begins."""
    rule: str | None
    scope: str | None
    request: Any
    """The body: any JSON, secrets masked."""
    text: str | None
    usage: Mapping[str, int] | None

    def __str__(self) -> str:
        answer = "" if self.text is None else f" -> {_brief(self.text)}"
        return f"{self.at[11:23]} {self.route} {self.status} {_brief(_last(self.request))}{answer}"


Entries = Sequence[JournalEntry]


def report(times: int | None, wanted: Mapping[str, str], fitting: Entries, every: Entries) -> str:
    """Returns the message for other than `times` requests; a line per entry has why it does not
    fit.
    """
    asked = "".join(f", {name} {value!r}" for name, value in wanted.items())
    count = "at least one request" if times is None else f"{times} request{'s' * (times != 1)}"
    lines = [*_lines(wanted, fitting, every)]
    more = [f"  ... and {len(lines) - MOST_LINES} earlier ones"] * (len(lines) > MOST_LINES)
    head = f"expected {count}{asked}; of {len(every)} in the journal {len(fitting)} fit"
    return "\n".join([f"{head}{':' * bool(lines)}", *more, *lines[-MOST_LINES:]])


def _lines(wanted: Mapping[str, str], fitting: Entries, every: Entries) -> Iterator[str]:
    for entry in every:
        if entry in fitting:
            yield f"  fits: {entry}"
            continue
        flaws = [
            f"{name} is {getattr(entry, name)!r}"
            for name in ("route", "scope")
            if name in wanted and getattr(entry, name) != wanted[name]
        ]
        yield f"  {entry}\n      {' and '.join(flaws) or 'its body does not contain the text'}"


def _last(request: Any) -> str:
    """Returns the text by which a reader knows a request: its last message, prompt or input."""
    if not isinstance(request, dict):
        return json.dumps(request, ensure_ascii=False)
    messages = request.get("messages") or request.get("input")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content", last) if isinstance(last, dict) else last
    for value in (content, request.get("prompt"), messages, request):
        if value:
            break
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _brief(text: str) -> str:
    return repr(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}...")
