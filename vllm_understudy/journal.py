"""Requests that a server has received, and a report for a test that expected other requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

MAX_LINES = 30
"""Maximum number of entries of a report."""
FIRST_ERROR_STATUS = 400
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
    """Time when the scheduler saw the request; known once a choice ends, like the next ones."""
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
    tool_calls: Sequence[Mapping[str, str]] | None = None
    """Tool calls of a script's reply, with `name` and `arguments`; None without calls."""
    error: str | None = None
    """Message of an error."""
    unmatched: bool = False
    """True if no rule answers the request; `error` names the nearest rule."""
    dataset_miss: bool = False
    """True if the prompt is not in the dataset."""
    ignored_fields: Sequence[str] = ()
    """Fields of the request that the played version of vLLM ignores, such as `guided_json`."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> JournalEntry:
        """Returns the entry of a row of the journal; ignores fields of newer servers."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in names})

    def __str__(self) -> str:
        text = f"{self.at[11:23]} {self.route} {self.status} {_brief(_key_text(self.request))}"
        calls = [f"{call['name']}({_cut(call['arguments'])})" for call in self.tool_calls or ()]
        if self.text or (self.text is not None and not calls):
            calls.insert(0, _brief(self.text))
        if calls:
            text += f" -> {', '.join(calls)}"
        return text

    def explained(self) -> str:
        """Returns the entry with a second line: the rule that answered, or the error."""
        first = str(self)
        if self.scope:
            first += f" (scope {self.scope!r})"
        second = self.rule or "no rule: the reply mode answered"
        if self.status is None or self.status >= FIRST_ERROR_STATUS:
            second = self.error or self.rule or "no rule"
        return f"  {first}\n      {second}"


Entries = Sequence[JournalEntry]


def unmatched_report(unmatched: Entries, entries: Entries) -> str:
    """Returns the message for requests that no rule answered, with the last requests."""
    count = len(unmatched)
    head = f"{count} request{'s' * (count != 1)} matched no rule. {unmatched[0].error}"
    return f"{head}\n{all_requests(entries)}"


def all_requests(entries: Entries) -> str:
    """Returns two lines for each of the last entries, the oldest first."""
    if not entries:
        return "no requests"
    lines = [f"{len(entries)} request{'s' * (len(entries) != 1)}, the oldest first:"]
    if len(entries) > MAX_LINES:
        lines.append(f"  ... and {len(entries) - MAX_LINES} earlier ones")
    lines += [entry.explained() for entry in entries[-MAX_LINES:]]
    return "\n".join(lines)


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
    return repr(_cut(text))


def _cut(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        return f"{text[:MAX_TEXT_LENGTH]}..."
    return text
