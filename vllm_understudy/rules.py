"""Rules for replies, as a test writes them, and the queries of their routes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlencode

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
Rule: TypeAlias = Mapping[str, Json]
SCRIPT_RULES = "/admin/script/rules"


class ControlError(Exception):
    """The server rejected a test's request, or does not answer; the message has the reason."""


def rejection(request: str, status: int, text: str) -> str:
    """Returns a sentence for a response with an error; `text` is its body."""
    route = request.partition("?")[0]
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"the server answered {route} with status {status}: {text}"
    return f"the server rejected {route} ({status}): {message}"


def query_of(fields: Mapping[str, str | None]) -> str:
    """Returns the query string of the fields that are not None."""
    return urlencode({name: value for name, value in fields.items() if value is not None})


def rule_of(when: Rule | None, action: Rule | str, name: str, times: int | None) -> dict[str, Json]:
    """Returns a rule of a script; `action` is its `then`."""
    rule: dict[str, Json] = {"name": name, "when": dict(when or {})}
    if isinstance(action, str):
        rule["then"] = action
    else:
        rule["then"] = dict(action)
    if times is not None:
        rule["times"] = times
    return rule


def sequence_of(replies: Sequence[Rule | str], when: Rule | None) -> list[dict[str, Json]]:
    """Returns a rule for each reply, which answers once. A text is short for `{"text": ...}`."""
    if isinstance(replies, str):
        raise TypeError(
            f"replies() accepts a list of replies, not a string; use replies([{replies!r}])"
        )
    if not replies:
        raise ValueError("replies() requires at least one reply")
    rules: list[dict[str, Json]] = []
    for number, reply in enumerate(replies, 1):
        if isinstance(reply, str):
            reply = {"text": reply}
        if not isinstance(reply, Mapping):
            raise TypeError(
                f"reply {number} must be a string or a mapping, got {type(reply).__name__}"
            )
        rules.append(rule_of(when, reply, f"reply {number} of {len(replies)}", 1))
    return rules
