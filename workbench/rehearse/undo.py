"""Finds the changes of releases that concern a request or an answer, by undoing them.

A change of vLLM has functions that undo it, as an older version has not made it
(`app.core.versions`). A change concerns the client if these functions modify its request or answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from app.core.base.error_body import error_message
from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Reading
from workbench.check.upgrade import changes_between
from workbench.rehearse.traffic import Event, Traffic

FOREIGN_FORM = (
    *(ApiError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    RecursionError,  # for a copy of a schema with 500 levels
)
"""Errors of a change whose answer or request does not have the form that vLLM's has."""


NUMBER = re.compile(r"\d+")


class ReleaseChange(NamedTuple):
    """A change, and the release that made it."""

    release: str
    change: Change


class EditedRequest(NamedTuple):
    """A request as the older version reads it, in the words of the newer one."""

    change: ReleaseChange
    sent: dict[str, Any]
    read: dict[str, Any]


class OlderAnswer(NamedTuple):
    """An answer of the newer version, without a change and without the later ones."""

    change: ReleaseChange
    newer: Sequence[Event]
    older: Sequence[Event]


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
        for release_change in self.changes:
            for form in release_change.change.forms:
                if not isinstance(form, Reading) or traffic.path not in form.paths:
                    continue
                edited = _attempt(_reader(form), request)
                if edited is not None and edited != request:
                    yield EditedRequest(release_change, request, edited)

    def older_answers(self, traffic: Traffic) -> Iterator[OlderAnswer]:
        """Yields the changes that answer a request otherwise, the newest first."""
        request = traffic.request if isinstance(traffic.request, dict) else {}
        events: Sequence[Event] = list(traffic.events)
        for release_change in reversed(self.changes):
            for form in release_change.change.forms:
                if not isinstance(form, Answer) or traffic.path not in form.paths:
                    continue
                undo = _undoer(form, request, is_stream=traffic.is_stream)
                older = _attempt(undo, events)
                if older is not None and older != events:
                    yield OlderAnswer(release_change, events, older)
                    events = older

    def older_words(self, old: Traffic, new: Traffic) -> list[ReleaseChange]:
        """Returns the changes that gave an error its new words, the newest first.

        Empty if undoing them does not lead to the old words.
        """
        error = ApiError(new.status, "", error_message(new.body))
        changes: list[ReleaseChange] = []
        for release_change in reversed(self.changes):
            for form in release_change.change.forms:
                if not isinstance(form, Answer) or new.path not in form.paths:
                    continue
                older = _attempt(_error_undoer(form, error), new.request)
                if older is not None and older.message != error.message:
                    changes.append(release_change)
                    error = older
        leads_to_old = without_numbers(error.message) == without_numbers(error_message(old.body))
        return changes if leads_to_old else []

    def naming(self, path: str, words: Sequence[str]) -> ReleaseChange | None:
        """Returns the last change of a route whose sentences quote one of the words."""
        for release_change in reversed(self.changes):
            text = f"{release_change.change.before} {release_change.change.after}"
            concerns_path = not release_change.change.routes or path in release_change.change.routes
            if concerns_path and any(f"`{word}`" in text for word in words):
                return release_change
        return None


def without_numbers(text: str) -> str:
    """Returns a text of an error without numbers, which depend on the request."""
    return NUMBER.sub("0", text)


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


def _error_undoer(form: Answer, error: ApiError) -> Callable[[Any], ApiError | None]:
    def undo(request: Any) -> ApiError | None:
        return None if form.failure is None else form.failure(error, request)

    return undo


def _undoer(form: Answer, request: dict[str, Any], *, is_stream: bool) -> Callable[[Any], Any]:
    """Returns the function that turns the events of an answer into older ones."""

    def undo(events: Sequence[Event]) -> list[Event]:
        if form.only is not None and not form.only(request):
            return list(events)
        older = list(events)
        if form.edit is not None:
            for event in older:
                form.edit(event.data)
        if is_stream and form.events is not None:
            shape = form.events(request)
            older = [Event(*part) for event in older for part in shape((event.name, event.data))]
        if not is_stream and form.whole is not None:
            whole = form.whole
            older = [Event("", _whole(whole, event.data, request)) for event in older]
        return older

    return undo


def _whole(whole: Callable[[Any, Any], object], answer: Any, request: dict[str, Any]) -> object:
    other = whole(answer, request)
    return answer if other is None else other
