"""The file format of recordings: the lines of a file, their header and their exchanges.

A header comes first, then exchanges in the order of their ends.

    {"format": "...", "version": 1, "target": "http://host:8000", "began": "2026-01-31T12:00:00Z"}
    {"at_s": 0.51, "request": {...}, "answer": {"status": 200, "chunks": [[0.03, "data: ..."], ...],
    ...}}

UTF-8 bytes are written as text, other bytes as base64. Times within an answer are seconds since the
whole request was sent. Secrets are masked before an exchange is stored, in headers, queries and
bodies.
"""

import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, BinaryIO, TypeAlias

import msgspec
from msgspec import Meta, Struct

from app.core.server.middleware.masking import mask_pieces
from config import ConfigError
from config.declaration import COMMAND
from config.files import open_file
from config.lines import MAX_LINE_BYTES
from config.untrusted import UntrustedDataError, decode_untrusted, is_valid_json

FORMAT = "understudy-recording"
VERSION = 1
HEADER_START = f'{{"format":"{FORMAT}"'.encode()
"""First bytes of a header as it is written."""
MAX_BODY_BYTES = 8 << 20
"""Largest recorded body, in bytes."""
MAX_HEADER_BYTES = 1 << 16
"""Longest first line of a file that grows, in bytes."""
PRIVATE_MODE = 0o600
"""Mode of a new recording, which contains the texts of prompts and answers."""
_NOT_LATIN_1 = re.compile(r"[^\x00-\xff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that JSON would write as six characters each; base64 is shorter."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RecordingError(ConfigError):
    """A recording cannot be read or written. The text is one line that names the file."""


class HiddenSecretsError(Exception):
    """A body may have secrets that cannot be masked. The text gives the reason."""


class Binary(Struct, frozen=True):
    """Bytes that are not text, in base64."""

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
    """A recorded answer, with times in seconds after the request.

    `is_broken`: the connection was lost after `end_s`.
    """

    status: Status
    headers: Headers
    head_s: Moment
    chunks: Sequence[RecordedChunk]
    end_s: Moment
    is_broken: bool = False

    def body(self) -> bytes:
        """Returns the whole body."""
        return b"".join(bytes_of(chunk.data) for chunk in self.chunks)


class Exchange(Struct, frozen=True):
    """A line of the file.

    `at_s` is the request's arrival in seconds since the start of the recording.
    """

    at_s: float
    request: RecordedRequest
    answer: RecordedAnswer


_exchange_decoder = msgspec.json.Decoder(Exchange)


def header_of(headers: Headers, name: str) -> str:
    """Returns the first header with this name (lower case); empty without one."""
    return next((value for header, value in headers if header.lower() == name), "")


def sendable(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers that are valid to send.

    They have valid names, and no folded lines (RFC 9112, section 5).
    """
    return [
        (name, value)
        for name, value in headers
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value)
    ]


def data_of(content: bytes) -> Data:
    """Returns `content` as text, or as base64 where it is not text."""
    if _CONTROL.search(content) is None:
        with suppress(UnicodeDecodeError):
            return content.decode()
    return Binary(b64encode(content).decode())


def bytes_of(data: Data) -> bytes:
    """Reverses `data_of`.

    Raises:
        ValueError: the base64 is not valid.
    """
    return data.encode() if isinstance(data, str) else b64decode(data.base64, validate=True)


def read_exchange(line: bytes) -> Exchange:
    """Decodes a line of the file.

    Raises:
        ValueError: the line is not an exchange.
    """
    exchange = decode_untrusted(line, decoder=_exchange_decoder)
    for data in (exchange.request.body, *(chunk.data for chunk in exchange.answer.chunks)):
        if not isinstance(data, str):
            bytes_of(data)
    return exchange


def line_of(item: Header | Exchange) -> bytes:
    """Encodes a line of the file.

    Raises:
        ValueError: the line is longer than lines that are read.
    """
    line = msgspec.json.encode(item) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the exchange takes more than {MAX_LINE_BYTES >> 20} MiB in the file")
    return line


def masked_pieces(pieces: Sequence[bytes], coding: str = "") -> list[bytes]:
    """Masks the secrets in the parts of a body.

    Raises:
        HiddenSecretsError: the body has a content `coding`.
    """
    if any(pieces) and coding.strip().lower() not in ("", "identity"):
        raise HiddenSecretsError(f"secrets in the {coding}-encoded body could not be masked")
    # Latin-1 maps each byte to one character, so parts may end anywhere and no byte is lost.
    # Characters decoded from JSON escapes become escapes again.
    masked = mask_pieces([piece.decode("latin-1") for piece in pieces])
    return [_NOT_LATIN_1.sub(_escaped, text).encode("latin-1") for text in masked]


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def create_private(path: str, flags: int) -> int:
    """Opens a file as `os.open` does. A new file is for its owner only: it quotes clients."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_MODE)


def open_recording(path: str) -> BinaryIO:
    """Opens a file for reading.

    Raises:
        RecordingError: the file cannot be read, or is not a regular file: lines are read again.
    """
    try:
        return open_file(path, accepts_pipes=False)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from None


def read_header(path: str, file: BinaryIO) -> Header:
    """Reads the first line of `file`.

    Raises:
        RecordingError: the file has another format or version.
    """
    try:
        header = decode_untrusted(file.readline(MAX_LINE_BYTES), type=Header)
    except UntrustedDataError:
        header = Header("", 0)
    if header.format != FORMAT:
        raise RecordingError(f"{path} was not recorded with {COMMAND} record --proxy")
    if header.version != VERSION:
        raise RecordingError(
            f"{path} uses format version {header.version}, but only version {VERSION} is supported"
        )
    return header


def is_cut_header(content: bytes) -> bool:
    """Returns True for a header whose writing was cut off, and for an empty file."""
    start = content[: len(HEADER_START)]
    if b"\n" in content or not HEADER_START.startswith(start):
        return False
    return not is_valid_json(content)
