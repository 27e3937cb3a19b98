"""Requests that a server has received, and a report for a test that expected other requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LINES = 30
"""Maximum number of entries of a report."""
MAX_TEXT_LENGTH = 160
"""Maximum length of a text in a report, in characters."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request and its reply, as `GET /admin/journal` shows them (docs/testing.md)."""

    id: str
    """Identifier of the request."""
    response_id: str | None
    """Id in the body of the answer."""
    at: str
    """Arrival, ISO 8601 in UTC."""
    route: str
    """Path of the request."""
    model: str | None
    """Requested model."""
    status: int | None
    """None until the response begins."""
    rule: str | None
    """Name of the script rule that answered."""
    scope: str | None
    """Header X-Understudy-Scope."""
    request: Any
    """The body: any JSON, secrets masked."""
    text: str | None
    """Text of the reply."""
    usage: Mapping[str, int] | None
    """Token counts of the reply."""
    arrived_s: float
    """Arrival, in Unix seconds, like all moments."""
    queued_s: float | None
    """Time when the scheduler saw the request; known once a choice has ended, like the next ones."""
    scheduled_s: float | None
    """Time when the request began to run."""
    first_s: float | None
    """Time when the engine had the first token."""
    last_s: float | None
    """Time when the engine had the last token."""
    sends_s: Sequence[float] | None
    """Times when the parts of the answer were handed to the connection."""
    cached_tokens: int | None
    """Tokens of the prompt that were in the cache."""
    preemptions: int | None
    """Number of preemptions."""

    def __str__(self) -> str:
        text = f"{self.at[11:23]} {self.route} {self.status} {_brief(_key_text(self.request))}"
        if self.text is not None:
            text += f" -> {_brief(self.text)}"
        return text


Entries = Sequence[JournalEntry]


def report(
    times: int | None, filters: Mapping[str, str], matching: Entries, entries: Entries
) -> str:
    """Returns the message for a number of requests other than `times`.

    A line for each entry of the journal has the filters that it does not match.
    """
    expected = "at least one request"
    if times is not None:
        expected = f"{times} request{'s' * (times != 1)}"
    for name, value in filters.items():
        expected += f", {name} {value!r}"
    text = f"expected {expected}; of {len(entries)} in the journal {len(matching)} fit"
    lines = [_line(filters, matching, entry) for entry in entries]
    if lines:
        text += ":"
    if len(lines) > MAX_LINES:
        text += f"\n  ... and {len(lines) - MAX_LINES} earlier ones"
    return "\n".join([text, *lines[-MAX_LINES:]])


def _line(filters: Mapping[str, str], matching: Entries, entry: JournalEntry) -> str:
    if entry in matching:
        return f"  fits: {entry}"
    mismatches = [
        f"{name} is {getattr(entry, name)!r}"
        for name in ("route", "scope")
        if name in filters and getattr(entry, name) != filters[name]
    ]
    return f"  {entry}\n      {' and '.join(mismatches) or 'its body does not contain the text'}"


def _key_text(request: Any) -> str:
    """Returns the text that identifies a request: its last message, prompt or input."""
    if not isinstance(request, dict):
        return json.dumps(request, ensure_ascii=False)
    messages = request.get("messages") or request.get("input")
    content = None
    if isinstance(messages, list) and messages:
        content = messages[-1]
        if isinstance(content, dict):
            content = content.get("content", content)
    value = content or request.get("prompt") or messages or request
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _brief(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        text = f"{text[:MAX_TEXT_LENGTH]}..."
    return repr(text)
