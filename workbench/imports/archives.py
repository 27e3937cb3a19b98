"""Recorded HTTP exchanges of other tools than VCR: HAR, nock, and WireMock.

Each becomes the interactions of a cassette, whose reader makes the rules.
"""

from collections.abc import Callable, Iterable

from workbench.imports.cassette import import_interactions
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    items,
    mapping,
)

FIRST_PORTS = (":443", ":80")
"""Ports that nock writes and URLs omit."""


def is_har(document: object) -> bool:
    """Returns whether a document is an HTTP Archive, of a browser, Polly.JS or a proxy."""
    return isinstance(document, dict) and isinstance(document.get("log"), dict)


def import_har(document: object, script: ImportedScript) -> Json:
    """Adds a rule for each entry, and returns the schemas of the tools by name.

    Raises:
        ImportFormatError: the document does not have the form of an archive.
    """
    log = mapping(mapping(document, "the file").get("log"), "log")
    return import_interactions(
        _each(items(log.get("entries"), "log.entries"), _entry), script, noun="entry"
    )


def _entry(entry: Json) -> Json:
    request = mapping(entry.get("request"), "request")
    response = mapping(entry.get("response"), "response")
    content = response.get("content") or {}
    body: object = content.get("text", "")
    if content.get("encoding") == "base64":
        body = {"base64_string": body}
    return {
        "request": {
            "method": request.get("method"),
            "uri": request.get("url"),
            "body": (request.get("postData") or {}).get("text", ""),
        },
        "response": {
            "status": response.get("status"),
            "headers": {pair["name"]: pair["value"] for pair in response.get("headers") or ()},
            "body": body,
        },
    }


def is_nock(document: object) -> bool:
    """Returns whether a document has recordings of nock."""
    return isinstance(document, list) and any(
        isinstance(item, dict) and "scope" in item for item in document
    )


def import_nock(document: object, script: ImportedScript) -> Json:
    """Adds a rule for each recording, and returns the schemas of the tools by name.

    Raises:
        ImportFormatError: the document is not a list.
    """
    return import_interactions(
        _each(items(document, "the file"), _recording), script, noun="recording"
    )


def _recording(recording: Json) -> Json:
    host = str(recording.get("scope"))
    for port in FIRST_PORTS:
        host = host.removesuffix(port)
    body: object = recording.get("response")
    if recording.get("responseIsBinary"):
        body = bytes.fromhex(str(body))
    elif isinstance(body, list) and body and all(isinstance(part, str) for part in body):
        body = bytes.fromhex("".join(body))  # chunks of a compressed answer
    raw = recording.get("rawHeaders") or ()
    headers = dict(zip(raw[::2], raw[1::2], strict=False)) if isinstance(raw, list) else raw
    return {
        "request": {
            "method": recording.get("method"),
            "uri": f"{host}{recording.get('path')}",
            **_body(recording.get("body")),
        },
        "response": {"status": recording.get("status"), "headers": headers or {}, **_body(body)},
    }


def _body(body: object) -> Json:
    """Returns the field of a message for a body, which may be JSON that is not written as text."""
    return {"parsed_body" if isinstance(body, dict | list) else "body": body}


def is_wiremock(document: object) -> bool:
    """Returns whether a document is a mapping of WireMock, or has a list of mappings."""
    if not isinstance(document, dict):
        return False
    if isinstance(document.get("mappings"), list):
        return True
    request = document.get("request")
    return "response" in document and isinstance(request, dict) and is_pattern(request)


def is_pattern(request: Json) -> bool:
    """Returns whether a request is a pattern, which has conditions on its body, but no body."""
    return "method" in request and "body" not in request


def import_wiremock(document: object, script: ImportedScript) -> Json:
    """Adds a rule for each mapping with a whole request, as WireMock records them.

    Raises:
        ImportFormatError: the document does not have the form of mappings.
    """
    file = mapping(document, "the file")
    mappings = items(file.get("mappings", [file]), "mappings")
    return import_interactions(_each(mappings, _mapping), script, noun="mapping")


def _mapping(stub: Json) -> Json:
    request = mapping(stub.get("request"), "request")
    response = mapping(stub.get("response"), "response")
    bodies = [
        pattern[name]
        for pattern in request.get("bodyPatterns") or ()
        for name in ("equalToJson", "equalTo")
        if name in pattern
    ]
    if not bodies:
        raise ImportFormatError("its request has no bodyPatterns with equalToJson or equalTo")
    if "bodyFileName" in response:
        raise ImportFormatError("its reply is in the file that bodyFileName names")
    body = _body(response.get("jsonBody", response.get("body", "")))
    if "base64Body" in response:
        body = {"body": {"base64_string": response["base64Body"]}}
    path = request.get("url") or request.get("urlPath") or ""
    return {
        "request": {
            "method": request.get("method"),
            "uri": f"http://wiremock{path}",
            **_body(bodies[0]),
        },
        "response": {
            "status": response.get("status", 200),
            "headers": response.get("headers") or {},
            **body,
        },
    }


def _each(recorded: Iterable[object], convert: Callable[[Json], Json]) -> list[object]:
    """Returns each item as an interaction; an error for one that has another form.

    The reader of interactions lists the errors with the places of the items.
    """
    interactions: list[object] = []
    for item in recorded:
        try:
            interactions.append(convert(mapping(item, "an item")))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            interactions.append(error)
    return interactions
