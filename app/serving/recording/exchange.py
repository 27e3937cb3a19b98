"""The recording's file format: lines of JSON. A header comes first, then exchanges in the order of their
ends.

    {"format": "...", "version": 1, "target": "http://host:8000", "began": "2026-01-31T12:00:00Z"}
    {"at_s": 0.51, "request": {...}, "answer": {"status": 200, "chunks": [[0.03, "data: ..."], ...], ...}}

UTF-8 bytes are written as text, other bytes as base64. Times within an answer are seconds since the whole
request was sent. Secrets are masked before an exchange is kept, in headers, queries and bodies.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from app.serving.middleware.masking import MASK, is_secret, mask_pieces
from config import ConfigError
from config.installation import COMMAND

FORMAT = "understudy-recording"
VERSION = 1
MOST_BODY_BYTES = 8 << 20
"""Largest recorded body, in bytes."""
MOST_LINE_BYTES = 5 * MOST_BODY_BYTES
"""Longest line, in bytes: both bodies with their escapes, and all other fields."""
_BEYOND = re.compile(r"[^\x00-\xff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that JSON would write as six characters each; base64 is shorter."""


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RecordingError(ConfigError):
    """A recording cannot be read or written. The text is one line that names the file."""


class Binary(Struct, frozen=True):
    """Bytes that are not UTF-8 text."""

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
    """A recorded request. `target` is the client's path and query; secrets are masked everywhere."""

    method: str
    target: str
    headers: Headers = ()
    body: Data = ""


class RecordedAnswer(Struct, frozen=True, omit_defaults=True, weakref=True):
    """A recorded answer: its head came after `head_s` seconds, its end after `end_s`, each chunk at its own
    time.

    `is_broken`: the connection was lost after `end_s`.
    """

    status: Status
    headers: Headers
    head_s: Moment
    chunks: Sequence[RecordedChunk]
    end_s: Moment
    is_broken: bool = False

    def header(self, name: str) -> str:
        return header_of(self.headers, name)

    def body(self) -> bytes:
        return b"".join(bytes_of(chunk.data) for chunk in self.chunks)


class Exchange(Struct, frozen=True):
    """A line of the file. `at_s` is the request's arrival in seconds since the start of the recording."""

    at_s: float
    request: RecordedRequest
    answer: RecordedAnswer


def header_of(headers: Headers, name: str) -> str:
    """Returns the first header with this name (lower case); empty without one."""
    return next((value for each, value in headers if each.lower() == name), "")


def sendable(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers that are valid to send: valid names, no folded lines (RFC 9112, section 5)."""
    return [each for each in headers if _NAME.fullmatch(each[0]) and _VALUE.fullmatch(each[1])]


def data_of(content: bytes) -> Data:
    """Encodes `content` for the file."""
    if _CONTROL.search(content) is None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
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


def check_header(line: bytes, path: str) -> None:
    """Checks the first line of a file. RecordingError: no recording, or another version of the format."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        header = Header("", 0)
    if header.format != FORMAT:
        raise RecordingError(f"{path}: is no recording of {COMMAND} record --proxy")
    if header.version != VERSION:
        raise RecordingError(f"{path}: has version {header.version} of the format; this is for {VERSION}")


class HiddenSecrets(Exception):
    """A body may have secrets that cannot be masked. The text gives the reason."""


def masked_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name, MASK if is_secret(name) else value) for name, value in headers]


def masked_pieces(pieces: Sequence[bytes], coding: str = "") -> list[bytes]:
    """Masks the secrets in the parts of a body. HiddenSecrets for a body with a content `coding`."""
    if any(pieces) and coding.strip().lower() not in ("", "identity"):
        raise HiddenSecrets(f"secrets in its {coding} body could not be masked")
    # Latin-1 maps each byte to one character, so parts may end anywhere and no byte is lost. Characters
    # decoded from JSON escapes become escapes again.
    masked = mask_pieces([piece.decode("latin-1") for piece in pieces])
    return [_BEYOND.sub(lambda found: json.dumps(found[0])[1:-1], text).encode("latin-1") for text in masked]
