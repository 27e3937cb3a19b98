"""Texts of recorded replies, written so that a script sends them unchanged."""

import json
import re
from typing import Any

from app.extensions.recording.conversation import Json
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

MAX_ESCAPES = 100
"""Most expressions in an escaped text; a text with more template syntax becomes a single literal.
"""
_MARK = re.compile(r"\{[{%#]")
"""Start of template syntax."""


def literals(value: Any) -> Any:
    """Escapes template syntax in all texts of a value, so that they render unchanged."""
    if isinstance(value, dict):
        return {name: literals(member) for name, member in value.items()}
    if isinstance(value, list):
        return [literals(item) for item in value]
    if not isinstance(value, str):
        return value
    if len(_MARK.findall(value)) > MAX_ESCAPES:
        return _literal(value)
    return _MARK.sub(r"{{ '\g<0>' }}", value)


def literal_call(name: object, arguments: str, call_id: str = "") -> Json:
    """Returns a tool call of a rule that sends the text `arguments` unchanged.

    Arguments are written as a mapping, which is easier to edit, where a script writes the same text
    for it. Malformed arguments are not checked.

    Raises:
        TypeError: the name is not a text.
    """
    if not isinstance(name, str):
        raise TypeError("a tool name must be a string")
    call: Json = {"name": name}
    values = _json_of(arguments)
    if not isinstance(values, dict):
        call["arguments"] = literals(arguments)
        call["unchecked"] = True
    elif _written(values) == arguments:
        call["arguments"] = literals(values)
    else:
        call["arguments"] = literals(arguments)
    if call_id:
        call["id"] = literals(call_id)
    return call


def _json_of(text: str) -> object:
    try:
        value: object = decode_untrusted(text, decoder=python_json)
    except UntrustedDataError:
        return None
    return value


def _written(values: Json) -> str | None:
    """Returns the text that a script writes for a mapping; None if it cannot."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None


def _literal(text: str) -> str:
    """Returns a template of one string literal.

    Many expressions would exceed the limits of a template.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    escaped = escaped.encode("ascii", "backslashreplace").decode()
    return "{{ '" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "' }}"
