"""Replies in the format of OpenAI's chats, as rules of a script."""

from app.extensions.recording.imports.imported_script import (
    ImportedScript,
    Json,
    is_number,
    status_of,
    text,
)
from app.extensions.recording.to_script import REPLAYED_FINISHES, literals
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

USAGE_FIELDS = ("prompt_tokens", "completion_tokens")
ERROR_FIELDS = ("type", "message")


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
    action: Json = {}
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        action["reasoning"] = literals(text(reasoning, "reasoning"))
    calls = message.get("tool_calls") or []
    content = message.get("content", choice.get("text"))
    if content or not calls:
        action["text"] = literals(text(content or "", "content"))
    if calls:
        action["tool_calls"] = [
            tool_call(script, place, call.get("function") or call, call.get("id")) for call in calls
        ]
    if choice.get("finish_reason") in REPLAYED_FINISHES:
        action["finish_reason"] = choice["finish_reason"]
    usage = usage_of(answer.get("usage"))
    if usage:
        action["usage"] = usage
    return action


def tool_call(script: ImportedScript, place: str, call: Json, call_id: object = None) -> Json:
    """Returns a tool call of a rule; its arguments may be JSON or a mapping."""
    arguments = call.get("arguments") or {}
    rule_call: Json = {"name": text(call["name"], "name")}
    if isinstance(arguments, str):
        try:
            arguments = decode_untrusted(arguments, decoder=python_json)
        except UntrustedDataError:
            arguments = None
    if isinstance(arguments, dict):
        rule_call["arguments"] = literals(arguments)
    else:
        script.leave_out(place, f"arguments of {call['name']} left out: not a JSON object")
        rule_call["unchecked"] = True
    if isinstance(call_id, str) and call_id:
        rule_call["id"] = literals(call_id)
    return rule_call


def usage_of(usage: object) -> Json:
    """Returns the token counts that a rule can replace."""
    if not isinstance(usage, dict):
        return {}
    counts = {name: usage.get(name) for name in USAGE_FIELDS}
    return {
        name: count for name, count in counts.items() if isinstance(count, int) and is_number(count)
    }


def error_action(status: object, error: object) -> Json:
    """Returns the action for an error answer; `error` is the object `error` of its body.

    Raises:
        ImportFormatError: the status is not that of an error.
    """
    fault: Json = {"action": "error", "status": status_of(status)}
    if isinstance(error, dict):
        for name in ERROR_FIELDS:
            if isinstance(error.get(name), str):
                fault[name] = error[name]
    return {"fault": fault}
