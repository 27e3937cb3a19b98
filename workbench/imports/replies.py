"""Replies in the format of OpenAI's chats, as rules of a script."""

import json
import math

from app.extensions.recording.exchange_rules import (
    REPLAYED_FINISHES,
    USUAL_FINISHES,
    error_fault,
    usage_of,
)
from app.extensions.recording.literals import literal_call, literals
from app.extensions.recording.reply_fields import (
    ANSWER_FIELDS,
    CHOICE_FIELDS,
    MESSAGE_FIELDS,
    unknown_fields,
)
from workbench.imports.imported_script import (
    ImportedScript,
    Json,
    status_of,
    text,
)


def chat_action(script: ImportedScript, place: str, answer: Json) -> Json:
    """Returns the action for a whole answer of a chat: its first choice.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is not an answer of a chat.
    """
    choices = answer["choices"]
    if len(choices) > 1:
        script.leave_out(place, f"choices 2 to {len(choices)} left out")
    choice = choices[0]
    message = choice.get("message") or {}
    lost = [
        *unknown_fields(answer, ANSWER_FIELDS),
        *unknown_fields(choice, CHOICE_FIELDS),
        *unknown_fields(message, MESSAGE_FIELDS),
    ]
    if lost:
        script.leave_out(place, f"{', '.join(lost)} left out")
    action: Json = {}
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        action["reasoning"] = literals(text(reasoning, "reasoning"))
    calls = message.get("tool_calls") or []
    content = message.get("content", choice.get("text"))
    if content or not calls:
        action["text"] = literals(text(content or "", "content"))
    if calls:
        action["tool_calls"] = [tool_call(function_of(call)) for call in calls]
    finish = choice.get("finish_reason") or ""
    if finish in REPLAYED_FINISHES:
        action["finish_reason"] = finish
    elif finish not in USUAL_FINISHES:
        script.leave_out(place, f"finish_reason {finish} left out")
    usage = usage_of(answer.get("usage"))
    if usage:
        action["usage"] = usage
    return action


def function_of(call: Json) -> Json:
    """Returns name, arguments and id of a call in the form of OpenAI's chats."""
    return {**(call.get("function") or call), "id": call.get("id")}


def tool_call(call: Json) -> Json:
    """Returns a tool call of a rule. Its arguments are sent unchanged, and values as compact JSON.

    Other tools send a call without a look at the tools of the request.

    Raises:
        ImportFormatError: its name, or the text of its arguments, is not a text.
    """
    arguments = call.get("arguments")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, dict | list):
        arguments = compact_json(arguments)
    call_id = call.get("id")
    rule_call = literal_call(
        text(call["name"], "name"),
        text(arguments, "arguments"),
        call_id if isinstance(call_id, str) else "",
    )
    rule_call["unchecked"] = True
    return rule_call


def compact_json(value: object) -> str:
    """Returns the JSON that JavaScript's `JSON.stringify` writes."""
    return json.dumps(_as_in_javascript(value), ensure_ascii=False, separators=(",", ":"))


def _as_in_javascript(value: object) -> object:
    """Returns a value with whole numbers as integers: JavaScript writes 1.0 as 1."""
    if isinstance(value, dict):
        return {name: _as_in_javascript(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_as_in_javascript(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value.is_integer() and abs(value) < 1e21:
            return int(value)
    return value


def error_action(script: ImportedScript, place: str, status: object, error: object) -> Json:
    """Returns the action for an error answer; `error` is the object `error` of its body.

    Raises:
        ImportFormatError: the status is not that of an error.
    """
    losses: list[str] = []
    fault = error_fault(status_of(status), error, losses)
    for loss in losses:
        script.leave_out(place, f"{loss} left out")
    return {"fault": fault}
