"""Cassettes of VCR: recorded HTTP exchanges of vcrpy, vcr (Ruby), and go-vcr, as YAML or JSON."""

import json
import zlib
from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import count
from urllib.parse import urlsplit

from app.extensions.recording.conversation import FAMILIES
from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
    data_of,
)
from app.extensions.recording.exchange_rules import (
    ConvertedExchange,
    ExchangeError,
    ToolSchemas,
)
from app.extensions.recording.providers.translators import translator_of
from app.extensions.recording.rules_of_exchanges import (
    PATH_OF_COUNTS,
    PATHS_OF_INPUTS,
    convert_exchange,
)
from config.untrusted import INVALID, UntrustedDataError, decode_untrusted
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
    items,
    mapping,
    status_of,
)
from workbench.imports.retrieved_responses import (
    RetrievedResponses,
    retrieved_id,
)

MAX_LINE = 200
OTHER_MESSAGES = "/threads/"
"""Part of the paths of OpenAI's Assistants, whose messages are other than Anthropic's."""
ANSWERED_BY_SERVER = ("/v1/models",)
"""Ends of the paths of requests whose answers are known without a script."""
MODEL_PATHS = ("/model/", "/models/")
"""Parts of the paths of Gemini and Bedrock."""
MODEL_FIELDS = ("model", "messages", "contents", "prompt", "inputText")
"""Fields of requests that ask a model. Requests of telemetry and of tools lack these fields."""
MAX_DECOMPRESSED_BYTES = 32 << 20
UNCOMPRESSED = ("", "identity")
TEXT_STARTS = (b"{", b"[", b"d", b"e", b":")
"""Starts of JSON, and of event streams: `data`, `event`, and comments."""


def is_cassette(document: object) -> bool:
    """Returns whether a document has the form of a cassette."""
    if not isinstance(document, dict):
        return False
    return isinstance(document.get("interactions", document.get("http_interactions")), list)


def import_cassette(document: object, script: ImportedScript) -> Json:
    """Adds a rule for each exchange, and returns the schemas of the tools by name.

    Raises:
        ImportFormatError: the document does not have the form of a cassette.
    """
    file = mapping(document, "the file")
    interactions = items(file.get("interactions", file.get("http_interactions")), "interactions")
    return import_interactions(interactions, script, noun="interaction")


def import_interactions(
    interactions: Sequence[object],
    script: ImportedScript,
    noun: str,
    numbers: Iterable[int] | None = None,
) -> Json:
    """Adds a rule for each exchange, and returns the schemas of the tools by name.

    An item that is an error is left out. `noun` is the word for an item in the lines of losses, and
    `numbers` has the number of each item, by default from 1.
    """
    tools = ToolSchemas()
    hosts = _hosts(interactions)
    retrieved = _retrieved_responses(interactions)
    for number, interaction in zip(numbers or count(1), interactions, strict=False):
        place = f"{noun} {number}"
        try:
            if isinstance(interaction, Exception):
                raise interaction
            request = _request_of(interaction, place)
            method, uri = _method_and_uri(request)
            if method == "GET" and retrieved.is_imported(retrieved_id(urlsplit(uri).path)):
                continue
            if hosts and urlsplit(uri).netloc not in hosts and not _asks_model(request, uri):
                script.ignored.append(
                    f"{place}: ignored: {method} {uri[:100]} goes to another server"
                )
                continue
            converted = _convert(mapping(interaction, place), place, retrieved)
        except (ImportFormatError, ExchangeError) as error:
            script.leave_out(place, f"left out: {error}")
            continue
        except INVALID as error:
            script.leave_out(place, f"left out: not an HTTP exchange: {error!r}"[:MAX_LINE])
            continue
        for loss in converted.losses:
            script.leave_out(place, f"{loss} left out")
        script.ignored += [f"{place}: ignored: {name}" for name in converted.ignored]
        for rule in converted.rules:
            script.add_rule(rule["name"], rule)
        tools.add(converted.tools)
    return tools.common()


def _convert(interaction: Json, place: str, retrieved: RetrievedResponses) -> ConvertedExchange:
    """Returns the rules of an interaction, without times, which a cassette does not have.

    Raises:
        ExchangeError: a rule cannot answer as recorded.
        one of INVALID: the interaction is not an HTTP exchange.
    """
    exchange = retrieved.completed(_exchange(interaction))
    converted = convert_exchange(exchange, place)
    for rule in converted.rules:
        rule["then"].pop("delays", None)
        if "fault" in rule["then"]:
            status_of(rule["then"]["fault"]["status"])
    return converted


def _request_of(interaction: object, place: str) -> Json:
    """Returns the request of an interaction.

    Raises:
        ImportFormatError: it has none, as the interactions of gRPC that some projects record.
    """
    parts = mapping(interaction, place)
    if "request" not in parts:
        raise ImportFormatError(f"not an HTTP exchange: it has only {', '.join(map(str, parts))}")
    return mapping(parts["request"], "request")


def _asks_model(request: Json, uri: str) -> bool:
    """Returns whether a request asks a model, in any API: such a request is a loss."""
    if any(part in urlsplit(uri).path for part in MODEL_PATHS):
        return True
    try:
        body = decode_untrusted(_body_of(request), type=Json)
    except UntrustedDataError:
        return False
    return any(field in body for field in MODEL_FIELDS)


def _method_and_uri(request: Json) -> tuple[str, str]:
    uri = str(request.get("uri", request.get("url", "")))
    return str(request.get("method", "POST")).upper(), uri


def _requests(interactions: Iterable[object]) -> Iterable[tuple[Json, str, str]]:
    """Yields each interaction that has a request, with its method and URI."""
    for interaction in interactions:
        if isinstance(interaction, dict) and isinstance(interaction.get("request"), dict):
            yield interaction, *_method_and_uri(interaction["request"])


def _hosts(interactions: Iterable[object]) -> set[str]:
    """Returns the hosts of the model servers, whose place this server takes."""
    hosts = set()
    for _, method, uri in _requests(interactions):
        try:
            url = urlsplit(uri)
        except ValueError:
            continue
        if method == "POST" and _path(url.path) is not None:
            hosts.add(url.netloc)
    return hosts


def _retrieved_responses(interactions: Iterable[object]) -> RetrievedResponses:
    retrieved = RetrievedResponses()
    for interaction, method, uri in _requests(interactions):
        if method != "GET":
            continue
        try:
            response_id = retrieved_id(urlsplit(uri).path)
            if response_id:
                retrieved.add(response_id, _answer(mapping(interaction["response"], "response")))
        except INVALID:
            continue  # the interaction gets its line when its turn comes
    return retrieved


def _exchange(interaction: Json) -> Exchange:
    request = mapping(interaction.get("request"), "request")
    response = mapping(interaction.get("response"), "response")
    method, uri = _method_and_uri(request)
    path = _path(urlsplit(uri).path)
    if path is None or method != "POST":
        reason = "a script cannot answer it"
        if urlsplit(uri).path.rstrip("/").endswith(ANSWERED_BY_SERVER):
            reason = "the server answers it without a script, with values of its own"
        raise ImportFormatError(f"{request.get('method', 'GET')} {uri[:100]} ({reason})")
    recorded_request = RecordedRequest("POST", path, (), data_of(_body_of(request)))
    return Exchange(0.0, recorded_request, _answer(response))


def _answer(response: Json) -> RecordedAnswer:
    status = response.get("status", response.get("status_code"))  # as old versions for httpx
    if isinstance(status, dict):
        status = status.get("code")
    elif "code" in response:  # as go-vcr, whose status is a text
        status = response["code"]
    headers = [(name.lower(), text) for name, text in _headers(response.get("headers") or {})]
    body = _decompressed(_body_of(response), dict(headers).get("content-encoding", ""))
    return RecordedAnswer(
        status=int(str(status)),
        headers=headers,
        head_s=0.0,
        chunks=[RecordedChunk(0.0, data_of(body))],
        end_s=0.0,
    )


def _path(path: str) -> str | None:
    """Returns this server's path of an API's path, such as one with an Azure deployment."""
    if OTHER_MESSAGES in path:
        return None
    if translator_of(path) is not None:
        return path
    for family_path in (*FAMILIES, *PATHS_OF_INPUTS, PATH_OF_COUNTS):
        if path.rstrip("/").endswith(family_path.removeprefix("/v1")):
            return family_path
    return None


def _headers(headers: Json) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, values in mapping(headers, "headers").items():
        for value in values if isinstance(values, list) else [values]:
            pairs.append((str(name), str(value)))
    return pairs


def _body_of(message: Json) -> bytes:
    """Returns the body of a request or a response.

    Serializers of projects write JSON as `parsed_body`, which is easier to read and to edit. Old
    versions of vcrpy write the answers of httpx as `content`.
    """
    if "body" not in message and "content" in message:
        return _body(message["content"])
    if message.get("body") is None and "parsed_body" in message:
        parsed = message["parsed_body"]
        if isinstance(parsed, str):
            return parsed.encode()
        return json.dumps(parsed, ensure_ascii=False).encode()
    return _body(message.get("body"))


def _body(body: object) -> bytes:
    """Returns the bytes of a body in each of the forms that cassettes have."""
    if isinstance(body, dict):
        if "base64_string" in body:
            return b64decode(str(body["base64_string"]))
        body = body.get("string", b"")
    if isinstance(body, bytes):
        return body
    if isinstance(body, dict | list):  # an object that is not written as text
        return json.dumps(body, ensure_ascii=False).encode()
    return str(body or "").encode()


def _decompressed(body: bytes, coding: str) -> bytes:
    """Returns a body without its content coding.

    Raises:
        ImportFormatError: the coding is unknown, or the body is too large.
    """
    if coding.lower() in UNCOMPRESSED or body.lstrip().startswith(TEXT_STARTS):
        return body  # as vcrpy can store answers, and browsers always do, with the header
    if coding.lower() not in ("gzip", "deflate"):
        raise ImportFormatError(f"content coding {coding}")
    window_bits = zlib.MAX_WBITS | 32  # finds out whether it is gzip or zlib
    try:
        decompressor = zlib.decompressobj(window_bits)
        content = decompressor.decompress(body, MAX_DECOMPRESSED_BYTES)
    except zlib.error:
        raise ImportFormatError(f"the body is not valid {coding} data") from None
    if decompressor.unconsumed_tail:
        raise ImportFormatError(f"the body exceeds {MAX_DECOMPRESSED_BYTES >> 20} MiB")
    return content
