"""A recording: the lines of its file, and the form of a request that finds its exchange.

A header comes first, then exchanges in the order of their ends.

    {"format": "...", "version": 1, "target": "http://host:8000", "began": "2026-01-31T12:00:00Z"}
    {"at_s": 0.51, "request": {...}, "answer": {"status": 200, "chunks": [[0.03, "data: ..."], ...],
    ...}}

UTF-8 bytes are written as text, other bytes as base64. Times within an answer are seconds since the
whole request was sent. Secrets are masked before an exchange is kept, in headers, queries and
bodies.

Requests are equal when method, path, query and normalized body are. A JSON object is normalized:
secrets masked, keys sorted, VOLATILE fields removed. Other bodies are compared byte by byte.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from operator import eq
from typing import Annotated, Any, BinaryIO, TypeAlias

import msgspec
from msgspec import Meta, Struct

from app.serving.middleware.masking import mask_pieces, mask_query
from config import ConfigError
from config.declaration import COMMAND

FORMAT = "understudy-recording"
VERSION = 1
HEADER_START = f'{{"format":"{FORMAT}"'.encode()
"""First bytes of a header as it is written."""
MOST_BODY_BYTES = 8 << 20
"""Largest recorded body, in bytes."""
MOST_LINE_BYTES = 5 * MOST_BODY_BYTES
"""Longest line, in bytes: both bodies with their escapes, and all other fields."""
MOST_HEADER_BYTES = 1 << 16
"""Longest first line of a file that grows, in bytes."""
_BEYOND = re.compile(r"[^\x00-\xff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that JSON would write as six characters each; base64 is shorter."""


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RecordingError(ConfigError):
    """A recording cannot be read or written. The text is one line that names the file."""


class Binary(Struct, frozen=True):
    base64: str


Data: TypeAlias = str | Binary
Headers: TypeAlias = Sequence[tuple[str, str]]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=10**6)]
"""Seconds after the request, at most 10**6 (eleven days)."""
Status: TypeAlias = Annotated[int, Meta(ge=100, le=999)]


class Header(Struct, frozen=True):
    """First line of the file: format, recorded server, and start (ISO 8601, UTC)."""

    format: str
    version: int
    target: str = ""
    began: str = ""


class RecordedChunk(Struct, frozen=True, array_like=True):
    """A part of a body, received `at_s` seconds after the request."""

    at_s: Moment
    data: Data


class RecordedRequest(Struct, frozen=True, omit_defaults=True):
    """A recorded request.

    `target` is the client's path and query; secrets are masked everywhere.
    """

    method: str
    target: str
    headers: Headers = ()
    body: Data = ""


class RecordedAnswer(Struct, frozen=True, omit_defaults=True, weakref=True):
    """A recorded answer; seconds after the request.

    `is_broken`: the connection was lost after `end_s`.
    """

    status: Status
    headers: Headers
    head_s: Moment
    chunks: Sequence[RecordedChunk]
    end_s: Moment
    is_broken: bool = False

    def body(self) -> bytes:
        return b"".join(bytes_of(chunk.data) for chunk in self.chunks)


class Exchange(Struct, frozen=True):
    """A line of the file.

    `at_s` is the request's arrival in seconds since the start of the recording.
    """

    at_s: float
    request: RecordedRequest
    answer: RecordedAnswer


def header_of(headers: Headers, name: str) -> str:
    """Returns the first header with this name (lower case); empty without one."""
    return next((value for each, value in headers if each.lower() == name), "")


def sendable(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers that are valid to send:

    valid names, no folded lines (RFC 9112, section 5).
    """
    return [each for each in headers if _NAME.fullmatch(each[0]) and _VALUE.fullmatch(each[1])]


def data_of(content: bytes) -> Data:
    if _CONTROL.search(content) is None:
        with suppress(UnicodeDecodeError):
            return content.decode()
    return Binary(b64encode(content).decode())


def bytes_of(data: Data) -> bytes:
    """Reverses `data_of`. ValueError for invalid base64."""
    return data.encode() if isinstance(data, str) else b64decode(data.base64, validate=True)


_decode = msgspec.json.Decoder(Exchange).decode


def read_exchange(line: bytes) -> Exchange:
    """Decodes a line of the file. ValueError for a line that is not an exchange."""
    exchange = _decode(line)
    for data in (exchange.request.body, *(chunk.data for chunk in exchange.answer.chunks)):
        if not isinstance(data, str):
            bytes_of(data)
    return exchange


def line_of(item: Header | Exchange) -> bytes:
    return msgspec.json.encode(item) + b"\n"


class HiddenSecrets(Exception):
    """A body may have secrets that cannot be masked. The text gives the reason."""


def masked_pieces(pieces: Sequence[bytes], coding: str = "") -> list[bytes]:
    """Masks the secrets in the parts of a body.

    HiddenSecrets for a body with a content `coding`.
    """
    if any(pieces) and coding.strip().lower() not in ("", "identity"):
        raise HiddenSecrets(f"secrets in its {coding} body could not be masked")
    # Latin-1 maps each byte to one character, so parts may end anywhere and no byte is lost.
    # Characters decoded from JSON escapes become escapes again.
    masked = mask_pieces([piece.decode("latin-1") for piece in pieces])
    return [
        _BEYOND.sub(lambda found: json.dumps(found[0])[1:-1], text).encode("latin-1")
        for text in masked
    ]


def opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_header(path: str, file: BinaryIO) -> Header:
    """Reads the first line of `file`. RecordingError for another format or version."""
    try:
        header = msgspec.json.decode(file.readline(MOST_LINE_BYTES), type=Header)
    except msgspec.MsgspecError:
        header = Header("", 0)
    if header.format != FORMAT:
        raise RecordingError(f"{path}: is no recording of {COMMAND} record --proxy")
    if header.version != VERSION:
        raise RecordingError(
            f"{path}: has version {header.version} of the format; this is for {VERSION}"
        )
    return header


def is_cut_header(content: bytes) -> bool:
    """Returns True for the beginning of a header whose writing was cut off, and for an empty file."""
    start = content[: len(HEADER_START)]
    if b"\n" in content or not HEADER_START.startswith(start):
        return False
    try:
        msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return True
    return False


VOLATILE = frozenset(
    (
        *("user", "request_id", "metadata", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "cache_salt", "priority", "service_tier"),
    )
)
"""Fields about the client or scheduling, which do not change the answer."""
MOST_TURNS = 64
"""Most turns compared: the last ones of a conversation."""
MOST_WORDS = 64
MOST_CHARACTERS = 1 << 14
"""Characters of a turn that are searched for words."""
_BOUNDARY = re.compile(r'boundary="?([^";,]+)')
_WORD = re.compile(r"\w+")
DIGEST_BYTES = 16
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
SEPARATORS = (b"/", b"?", b"#", b"%", b"\\")
"""Bytes that mean something else in a path when they are percent-encoded."""
_encoder = msgspec.json.Encoder(order="sorted")
UNWRITABLE = (ValueError, OverflowError, RecursionError)


class Likeness(Struct, frozen=True):
    """The parts of a JSON request that are compared to find the most similar one."""

    stream: bool
    roles: bytes
    """Hash of the roles of all compared turns, in order."""
    turns: Sequence[bytes]
    """Hashes of messages, inputs or prompts."""
    words: frozenset[str]

    def rank(self, other: "Likeness") -> tuple[bool, int, float]:
        """Returns equal roles, number of equal turns at equal positions, share of the last turn's
        words.
        """
        shared = len(self.words & other.words) / (len(self.words | other.words) or 1)
        return self.roles == other.roles, sum(map(eq, self.turns, other.turns)), shared


class RequestForm(Struct, frozen=True):
    """Lookup form of a request.

    Equal requests share `key`; requests for the same route share `place`.
    """

    key: bytes
    place: bytes
    model: str | None
    likeness: Likeness | None
    """None for a body that is not a JSON object."""


def comparable_path(path: str) -> bytes:
    """Decodes a path, except for encoded separators:

    `%2F` is not a slash, and `%25` begins no escape.
    """

    def decoded(found: re.Match[bytes]) -> bytes:
        byte = bytes.fromhex(found[1].decode())
        return found[0].upper() if byte in SEPARATORS else byte

    return _ESCAPE.sub(decoded, path.encode())


def form_of(method: str, target: str, content_type: str, body: bytes, alike: bool) -> RequestForm:
    path, mark, query = mask_query(target).partition("?")
    place = hash_of(b"%b %b%b" % (method.encode(), comparable_path(path), (mark + query).encode()))
    fields = json_object(body)
    if fields is not None:
        # 1.0 is equal to 1: clients write either.
        known = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in fields.items()
            if name not in VOLATILE and value is not None
        }
        model = known.get("model")
        with suppress(*UNWRITABLE):  # JSON that cannot be encoded again
            key = digest(known, place)
            model = model if isinstance(model, str) else None
            return RequestForm(key, place, model, _likeness(known) if alike else None)
    boundary = _BOUNDARY.search(content_type) if content_type.startswith("multipart/") else None
    if boundary is not None:  # differs in every request
        body = body.replace(boundary[1].encode("latin-1", "replace"), b"boundary")
    return RequestForm(hash_of(body, place), place, None, None)


def _likeness(fields: dict[str, object]) -> Likeness:
    value = next((fields[name] for name in ("messages", "input", "prompt") if name in fields), None)
    turns = value[-MOST_TURNS:] if isinstance(value, list) else [value]
    roles = [
        turn.get("role") or turn.get("type") if isinstance(turn, dict) else None for turn in turns
    ]
    words = _WORD.findall(text_of(turns[-1])[:MOST_CHARACTERS].lower()) if turns else ()
    stream = fields.get("stream") is True
    return Likeness(
        stream, digest(roles), [digest(turn) for turn in turns], frozenset(words[:MOST_WORDS])
    )


def text_of(turn: object) -> str:
    """Text of a message, an input or a prompt; empty without text."""
    content = turn.get("content", turn.get("output")) if isinstance(turn, dict) else turn
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def json_object(body: bytes) -> dict[str, object] | None:
    """Returns the JSON object in `body`; None for other content."""
    if _OBJECT.match(body) is None:
        return None
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def model_of(body: bytes) -> str | None:
    """Returns the model that a JSON body names; None without one."""
    model = (json_object(body) or {}).get("model")
    return model if isinstance(model, str) else None


def digest(value: object, place: bytes = b"") -> bytes:
    """Hashes a JSON value.

    Raises one of `UNWRITABLE` if it cannot be encoded, as half a surrogate pair.
    """
    return hash_of(_encoder.encode(value), place)


def hash_of(content: bytes, place: bytes = b"") -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES, key=place).digest()


BROKEN = (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError)


class RecordedReply(Struct):
    """The first choice of an answer; `moments` are of events with a part of the reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = []
    finish: str = ""
    usage: dict[str, int] | None = None
    events: int = 0
    moments: list[float] = []

    def take(self, event: dict[str, Any], at_s: float) -> None:
        self.events += 1
        self.usage = event.get("usage") or self.usage
        says = False
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            self.finish = choice.get("finish_reason") or self.finish
            part = choice.get("message") or choice.get("delta") or {}
            text = (choice.get("text") or "") + (part.get("content") or "")
            reasoning = part.get("reasoning") or part.get("reasoning_content") or ""
            calls = part.get("tool_calls") or ()
            self.text += text
            self.reasoning += reasoning
            for place, call in enumerate(calls):
                function, index = call.get("function") or {}, call.get("index")
                number = min(place if index is None else index, len(self.calls))
                if number == len(self.calls):
                    self.calls.append(["", ""])
                self.calls[number][0] += function.get("name") or ""
                self.calls[number][1] += function.get("arguments") or ""
            says = says or bool(text or reasoning or calls)
        if says:
            self.moments.append(at_s)


def reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Parses an answer, whole or streamed.

    Raises one of `BROKEN` for a body that is not a reply.
    """
    reply, decode = RecordedReply(), msgspec.json.Decoder(dict[str, Any]).decode
    if not header_of(answer.headers, "content-type").lower().startswith("text/event-stream"):
        reply.take(decode(answer.body()), answer.end_s)
        return reply
    rest = b""
    for chunk in answer.chunks:
        *lines, rest = (rest + bytes_of(chunk.data)).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                reply.take(decode(data), chunk.at_s)
    return reply
