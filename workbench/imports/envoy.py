"""Logs of Envoy: access logs in JSON whose format adds the bodies, and the traces of taps.

The configuration of an access log determines its names. A tap writes a whole exchange
(`http_buffered_trace`) or its parts (`http_streamed_trace_segment`); see
https://www.envoyproxy.io/docs/envoy/latest/operations/traffic_tapping.
"""

from base64 import b64decode
from dataclasses import replace

from workbench.imports.fixture_format import Record, Records
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    mapping,
)
from workbench.imports.records import (
    first_of,
    has_record,
    import_records,
    interaction,
)

BUFFERED = "http_buffered_trace"
SEGMENT = "http_streamed_trace_segment"
TAP_KEYS = (BUFFERED, SEGMENT)
REQUEST_BODY_KEYS = ("request_body", "req_body", "requestBody", "request.body")
RESPONSE_BODY_KEYS = ("response_body", "resp_body", "responseBody", "response.body")
METHOD_KEYS = ("method", ":method", "request_method", "requestMethod", "http_method", "verb")
PATH_KEYS = (
    *("path", ":path", "request_path", "requestPath", "original_path", "x_envoy_original_path"),
    *("x-envoy-original-path", "uri", "request_uri", "url"),
)
STATUS_KEYS = ("response_code", "responseCode", "status", "status_code", "statusCode", ":status")
HOST_KEYS = ("authority", ":authority", "host", "request_host")
CODING_KEYS = ("content_encoding", "content-encoding", "response_content_encoding")
NO_VALUE = "-"
"""Text of an access log for a missing value."""


def is_envoy(records: Records) -> bool:
    """Returns whether an object of the log is a line of an access log, or part of a tap."""
    return has_record(records, _is_envoy)


def _is_envoy(fields: Json) -> bool:
    if first_of(fields, TAP_KEYS) is not None:
        return True
    has_request = isinstance(first_of(fields, PATH_KEYS), str)
    has_status = first_of(fields, STATUS_KEYS) is not None
    has_body = first_of(fields, (*REQUEST_BODY_KEYS, *RESPONSE_BODY_KEYS)) is not None
    return has_request and (has_status or first_of(fields, METHOD_KEYS) is not None) and has_body


def import_envoy(records: Records, script: ImportedScript) -> Json:
    """Adds a rule for each exchange, and returns the schemas of the tools by name."""
    return import_records(_with_whole_taps(records), script, _interaction)


def _with_whole_taps(records: Records) -> Records:
    """Returns the records, with the segments of each streamed tap as one buffered trace."""
    found: list[Record] = []
    traces: dict[str, Json] = {}
    for number, fields in records.found:
        segment = fields.get(SEGMENT)
        if not isinstance(segment, dict):
            found.append(Record(number, fields))
            continue
        trace_id = str(segment.get("trace_id"))
        if trace_id not in traces:
            traces[trace_id] = {"request": _new_message(), "response": _new_message()}
            found.append(Record(number, {BUFFERED: traces[trace_id]}))
        for side, message in traces[trace_id].items():
            headers = segment.get(f"{side}_headers")
            if isinstance(headers, dict):
                message["headers"] = headers.get("headers")
            if f"{side}_body_chunk" in segment:
                message["chunks"].append(segment[f"{side}_body_chunk"])
    return replace(records, found=found)


def _new_message() -> Json:
    return {"headers": [], "chunks": []}


def _interaction(fields: Json) -> Json | None:
    """Returns the interaction in a record; None for a record without a request to a model.

    Raises:
        ImportFormatError: the record has no bodies.
        one of INVALID: it has another form.
    """
    if BUFFERED in fields:
        return _tapped(mapping(fields[BUFFERED], BUFFERED))
    path = first_of(fields, PATH_KEYS)
    method = first_of(fields, METHOD_KEYS, "POST")
    if path in (None, NO_VALUE) or method != "POST":
        return None
    sent = first_of(fields, REQUEST_BODY_KEYS, NO_VALUE)
    received = first_of(fields, RESPONSE_BODY_KEYS, NO_VALUE)
    if NO_VALUE in (sent, received):
        raise ImportFormatError(
            "it has no request_body or no response_body; the format of the access log decides"
        )
    host = first_of(fields, HOST_KEYS)
    if host is not None and "://" not in str(path):
        path = f"http://{host}{path}"
    coding = first_of(fields, CODING_KEYS, "")
    headers = {"content-encoding": coding} if coding != NO_VALUE else {}
    status = first_of(fields, STATUS_KEYS, 200)
    return interaction(path, sent, received, status=status, method=method, headers=headers)


def _tapped(trace: Json) -> Json | None:
    """Returns the interaction in a trace; None for a request that is no POST.

    Raises:
        one of INVALID: it has another form.
    """
    request = mapping(trace.get("request"), "request")
    response = mapping(trace.get("response"), "response")
    sent_headers = _headers_of(request)
    if sent_headers.get(":method") != "POST":
        return None
    headers = _headers_of(response)
    host = sent_headers.get(":authority", "recorded")
    status = headers.pop(":status", None)
    return interaction(
        f"http://{host}{sent_headers.get(':path', '')}",
        _body_of(request),
        _body_of(response),
        status=status,
        headers=dict(headers),
    )


def _headers_of(message: Json) -> dict[str, str]:
    return {str(pair["key"]).lower(): str(pair["value"]) for pair in message.get("headers") or ()}


def _body_of(message: Json) -> bytes:
    """Returns the body of a traced message, which has one or several parts.

    Raises:
        ImportFormatError: the tap has cut it.
    """
    parts = message.get("chunks") or [message.get("body") or {}]
    contents: list[bytes] = []
    for part in parts:
        if part.get("truncated"):
            raise ImportFormatError(
                "a body is cut; raise max_buffered_rx_bytes and max_buffered_tx_bytes of the tap"
            )
        if "as_bytes" in part:
            contents.append(b64decode(part["as_bytes"]))
        else:
            contents.append(str(part.get("as_string", "")).encode())
    return b"".join(contents)
