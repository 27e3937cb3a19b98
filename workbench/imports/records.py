"""Makes the interactions of a cassette from logs whose records are exchanges with a model."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from config.untrusted import INVALID, UntrustedDataError, decode_untrusted, python_json
from workbench.imports.cassette import import_interactions
from workbench.imports.fixture_format import Record, Records
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)

UNKNOWN_HOST = "http://recorded"
"""Host of a URL that a log has without its host."""
ERROR_STATUS = re.compile("[45][0-9]{2}")
FAILURE_STATUS = 500
"""Status of an error whose log has none."""
MAX_START = 1000
"""Characters of a stream that contain its first event."""


def import_records(
    records: Records, script: ImportedScript, convert: Callable[[Json], Json | None]
) -> Json:
    """Adds a rule for each record, and returns the schemas of the tools by name.

    `convert` returns the interaction in a record, or None for a record without a request to a
    model. It may raise the errors of INVALID.
    """
    interactions: list[object] = []
    numbers: list[int] = []
    for record in records.found:
        interaction: object
        try:
            interaction = convert(record.fields)
        except INVALID as error:
            interaction = error
        if interaction is not None:
            interactions.append(interaction)
            numbers.append(record.number)
    _list_others(records, script, len(records.found) - len(interactions))
    return import_interactions(interactions, script, noun=records.noun, numbers=numbers)


def list_damaged(records: Records, script: ImportedScript) -> None:
    """Adds a loss for each damaged line or item; those beyond the most that are listed have one."""
    for number in records.damaged:
        script.leave_out(f"{records.noun} {number}", "left out: not a JSON object of a usual size")
    if records.unlisted:
        script.leave_out(f"{records.noun}s", f"left out: {records.unlisted:,} more of this kind")


def _list_others(records: Records, script: ImportedScript, others: int) -> None:
    list_damaged(records, script)
    if records.other_lines:
        script.ignored.append(f"ignored: lines without a JSON object: {records.other_lines}")
    if others:
        script.ignored.append(f"ignored: {records.noun}s without a request to a model: {others}")


def has_record(records: Records, is_record: Callable[[Json], bool]) -> bool:
    """Returns whether one of the records has a form.

    `is_record` may raise the errors of INVALID.
    """
    return any(_has_form(record, is_record) for record in records.found)


def _has_form(record: Record, is_record: Callable[[Json], bool]) -> bool:
    try:
        return is_record(record.fields)
    except INVALID:
        return False


def first_of(fields: Mapping[str, Any], names: Iterable[str], default: Any = None) -> Any:
    """Returns the first of the fields that is there and not null."""
    for name in names:
        if fields.get(name) is not None:
            return fields[name]
    return default


def interaction(
    uri: object,
    sent: object,
    received: object,
    *,
    status: object = 200,
    method: object = "POST",
    headers: Json | None = None,
) -> Json:
    """Returns the interaction of a cassette. Bodies are JSON, text, bytes, or missing (None)."""
    if isinstance(received, list):  # the chunks of a stream
        received = "".join(f"data: {text_of(chunk)}\n\n" for chunk in received)
    return {
        "request": {"method": method, "uri": with_host(str(uri)), "body": _text_body(sent)},
        "response": {"status": status, "headers": headers or {}, "body": _text_body(received)},
    }


def with_host(uri: str) -> str:
    """Returns a URI with a host."""
    if "://" in uri:
        return uri
    return f"{UNKNOWN_HOST}/{uri.lstrip('/')}"


def _text_body(body: object) -> object:
    """Returns a body that a cassette can have: an object with `string` would be read as one."""
    return text_of(body) if isinstance(body, dict) else body


def text_of(value: object) -> str:
    """Returns a text, or the JSON of another value."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def as_json(body: object) -> object:
    """Returns the JSON in a text; other values, and other texts, unchanged."""
    if not isinstance(body, str):
        return body
    try:
        value: object = decode_untrusted(body, decoder=python_json)
    except UntrustedDataError:
        return body
    return value


def error_status(*values: object) -> int:
    """Returns the first status of an error among values of a log, which may be texts."""
    for value in values:
        text = str(value)
        if ERROR_STATUS.fullmatch(text):
            return int(text)
    return FAILURE_STATUS


def path_of_api(sent: object, received: object) -> str:
    """Returns the path of the API of two bodies, for a log without URLs.

    Raises:
        ImportFormatError: the bodies fit no API.
    """
    request = as_json(sent)
    answer = as_json(received)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if not isinstance(request, dict):
        raise ImportFormatError("its request is not a JSON object")
    if "documents" in request:
        return "/v1/rerank"
    if "prompt" in request:
        return "/v1/completions"
    if "messages" in request:
        return "/v1/messages" if _is_message(answer) else "/v1/chat/completions"
    if "input" in request:
        return "/v1/embeddings" if _is_embedding(answer) else "/v1/responses"
    raise ImportFormatError("it has no URL, and no messages, prompt, input, or documents")


def _is_message(answer: object) -> bool:
    """Returns whether an answer is of the Messages API: whole, or its stream as text."""
    if isinstance(answer, str):
        return "message_start" in answer[:MAX_START]
    return isinstance(answer, dict) and answer.get("type") in ("message", "message_start")


def _is_embedding(answer: object) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("data"), list)
