"""Finds the changes of releases that concern a request or an answer, by undoing them.

Each change of vLLM is described by what an older version does otherwise (`app.core.versions`). If
that modifies a request or an answer of the client, then the change concerns the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Reading
from app.extensions.check.upgrade import changes_between
from app.extensions.rehearse.traffic import Event, Traffic

FOREIGN_FORM = (ApiError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of a change whose answer or request does not have the form that vLLM's has."""


class ReleaseChange(NamedTuple):
    """A change, and the release that made it."""

    release: str
    change: Change


class EditedRequest(NamedTuple):
    """A request as the older version reads it, in the words of the newer one."""

    change: ReleaseChange
    before: dict[str, Any]
    after: dict[str, Any]


class OlderAnswer(NamedTuple):
    """An answer of the newer version, without a change and those after it."""

    change: ReleaseChange
    before: Sequence[Event]
    after: Sequence[Event]


class Upgrade:
    """The changes between two versions."""

    def __init__(self, old: str, new: str) -> None:
        """`old` and `new` are versions such as 0.27."""
        self.changes = [
            ReleaseChange(release, change) for release, change in changes_between(old, new)
        ]
        """The changes, the oldest first."""

    def edited_requests(self, traffic: Traffic) -> Iterator[EditedRequest]:
        """Yields the changes that read a request otherwise."""
        request = traffic.request
        if not isinstance(request, dict):
            return
        for each in self.changes:
            for form in each.change.forms:
                if not isinstance(form, Reading) or traffic.path not in form.paths:
                    continue
                edited = _attempt(_reader(form), request)
                if edited is not None and edited != request:
                    yield EditedRequest(each, request, edited)

    def older_answers(self, traffic: Traffic) -> Iterator[OlderAnswer]:
        """Yields the changes that answer a request otherwise, the newest first."""
        request = traffic.request if isinstance(traffic.request, dict) else {}
        events: Sequence[Event] = list(traffic.events)
        for each in reversed(self.changes):
            for form in each.change.forms:
                if not isinstance(form, Answer) or traffic.path not in form.paths:
                    continue
                undo = _undoer(form, request, is_stream=traffic.is_stream)
                older = _attempt(undo, events)
                if older is not None and older != events:
                    yield OlderAnswer(each, events, older)
                    events = older

    def naming(self, path: str, words: Sequence[str]) -> ReleaseChange | None:
        """Returns the last change of a route whose sentences quote one of the words."""
        for each in reversed(self.changes):
            text = f"{each.change.before} {each.change.after}"
            concerns_path = not each.change.routes or path in each.change.routes
            if concerns_path and any(f"`{word}`" in text for word in words):
                return each
        return None


def _attempt(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns what a change makes of a copy of a value; None if it cannot be applied."""
    try:
        return function(deepcopy(value))
    except FOREIGN_FORM:
        return None


def _reader(form: Reading) -> Callable[[Any], Any]:
    def read(request: Any) -> Any:
        form.read(request)
        return request

    return read


def _undoer(form: Answer, request: dict[str, Any], *, is_stream: bool) -> Callable[[Any], Any]:
    """Returns the function from the events of an answer to those of the older version."""

    def undo(events: Sequence[Event]) -> list[Event]:
        if form.only is not None and not form.only(request):
            return list(events)
        older = list(events)
        if form.edit is not None:
            for event in older:
                form.edit(event.data)
        if is_stream and form.events is not None:
            shape = form.events(request)
            older = [Event(*each) for event in older for each in shape((event.name, event.data))]
        if not is_stream and form.whole is not None:
            whole = form.whole
            older = [Event("", _whole(whole, event.data, request)) for event in older]
        return older

    return undo


def _whole(whole: Callable[[Any, Any], object], answer: Any, request: dict[str, Any]) -> object:
    other = whole(answer, request)
    return answer if other is None else other
