"""JSON lines with a request and its response, as many clients and gateways log them.

Each of both is a body, or an object with a body, a URL, a status, and headers. The files of batches
have them in two lines with the same `custom_id`.
"""

from dataclasses import replace

from workbench.imports.fixture_format import Record, Records
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from workbench.imports.records import (
    as_json,
    error_status,
    first_of,
    has_record,
    import_records,
    interaction,
    path_of_api,
)

REQUEST_KEYS = ("request", "request_body", "requestBody", "req")
RESPONSE_KEYS = ("response", "response_body", "responseBody", "resp", "res")
BODY_KEYS = ("body", "json", "parsed_body")
URL_KEYS = ("url", "uri", "path", "endpoint", "target")
STATUS_KEYS = ("status_code", "statusCode", "status", "code", "response_status")
BATCH_KEYS = {"custom_id", "url", "body"}
"""Fields of a line of a batch's input."""


def is_exchange_log(records: Records) -> bool:
    """Returns whether an object of the log has a request and a response, or is of a batch."""
    return has_record(records, _is_exchange)


def _is_exchange(fields: Json) -> bool:
    if not isinstance(first_of(fields, RESPONSE_KEYS), dict | list | str):
        return fields.keys() >= BATCH_KEYS
    return isinstance(first_of(fields, REQUEST_KEYS), dict | str) or "custom_id" in fields


def import_exchange_log(records: Records, script: ImportedScript) -> Json:
    """Adds a rule for each exchange, and returns the schemas of the tools by name."""
    return import_records(_without_batches(records), script, _interaction)


def _without_batches(records: Records) -> Records:
    """Returns the records, with the lines of a batch's input as requests of its output."""
    inputs: dict[str, Json] = {}
    found: list[Record] = []
    for number, fields in records.found:
        if fields.keys() >= BATCH_KEYS and first_of(fields, RESPONSE_KEYS) is None:
            inputs[str(fields["custom_id"])] = fields
        elif "custom_id" in fields and first_of(fields, REQUEST_KEYS) is None:
            request = inputs.get(str(fields["custom_id"]))
            found.append(Record(number, {**fields, "request": request}))
        else:
            found.append(Record(number, fields))
    return replace(records, found=found)


def _interaction(fields: Json) -> Json | None:
    """Returns the interaction in a record; None for a record without an exchange.

    Raises:
        ImportFormatError: the API is unknown.
    """
    sent = as_json(first_of(fields, REQUEST_KEYS))
    received = as_json(first_of(fields, RESPONSE_KEYS))
    if received is None:
        return None
    if sent is None:
        raise ImportFormatError(
            "it has no request; a batch's input and output have to be in one file, in this order"
        )
    outer = {name: value for name, value in fields.items() if name not in RESPONSE_KEYS}
    method = first_of(outer, ("method",), "POST")
    url = first_of(outer, URL_KEYS)
    if isinstance(sent, dict) and first_of(sent, BODY_KEYS) is not None:
        method = first_of(sent, ("method",), method)
        url = first_of(sent, URL_KEYS, url)
        sent = first_of(sent, BODY_KEYS)
    status = first_of(outer, STATUS_KEYS)
    headers: Json | None = None
    if isinstance(received, dict) and first_of(received, BODY_KEYS) is not None:
        status = first_of(received, STATUS_KEYS, status)
        headers = received.get("headers")
        received = first_of(received, BODY_KEYS)
    if not isinstance(url, str) or "/" not in url:
        url = path_of_api(sent, received)
    return interaction(
        url,
        sent,
        received,
        status=_status_of(status, received),
        method=method,
        headers=headers,
    )


def _status_of(status: object, received: object) -> object:
    """Returns the status of an answer, whose log may have another word such as `success`."""
    if isinstance(status, int) and not isinstance(status, bool):
        return status
    if isinstance(status, str) and status.isdecimal():
        return status
    answer = as_json(received)
    if not isinstance(answer, dict) or not answer.get("error"):
        return 200
    error = answer["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return error_status(code if isinstance(code, int) else None)
