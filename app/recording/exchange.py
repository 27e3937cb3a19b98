"""The file of a recording: lines of JSON, first a header, then an exchange each, in the order of their ends.

    {"format": "...", "version": 1, "target": "http://host:8000", "began": "2026-01-31T12:00:00Z"}
    {"at_s": 0.51, "request": {...}, "answer": {"status": 200, "chunks": [[0.03, "data: ..."], ...], ...}}

Bytes are texts where they are UTF-8, else base64. Moments within an answer are seconds since its request had
been sent whole.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from config import ConfigError
from config.installation import COMMAND

FORMAT = "understudy-recording"
VERSION = 1
MOST_BODY_BYTES = 8 << 20
"""Of a body that is kept."""
MOST_LINE_BYTES = 5 * MOST_BODY_BYTES
"""Both bodies, written with escapes, and all else."""

_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that would be six characters of JSON each."""


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RecordingError(ConfigError):
    """A recording that cannot be read or written; one line that names the file."""


class Binary(Struct, frozen=True):
    """Bytes that are no text."""

    base64: str


Data: TypeAlias = str | Binary
Headers: TypeAlias = Sequence[tuple[str, str]]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=10**6)]
"""Seconds after the request: eleven days at most."""
Status: TypeAlias = Annotated[int, Meta(ge=100, le=999)]


class Header(Struct, frozen=True):
    """The first line: which format, of which server, and when it began (ISO 8601, UTC)."""

    format: str
    version: int
    target: str = ""
    began: str = ""


class Chunk(Struct, frozen=True, array_like=True):
    """A piece of a body, `at_s` seconds after the request."""

    at_s: Moment
    data: Data


class Request(Struct, frozen=True, omit_defaults=True):
    """The request. `target` is path and query as the client sent them; secrets are masked everywhere."""

    method: str
    target: str
    headers: Headers = ()
    body: Data = ""


C = TypeVar("C")


class Answer(Struct, Generic[C], frozen=True, omit_defaults=True, weakref=True):
    """What came: its head after `head_s` seconds, its chunks each at its moment, its end after `end_s`.

    `is_broken`: there was no end, the connection was lost after `end_s`. Chunks are `Chunk`, or unread JSON.
    """

    status: Status
    headers: Headers
    head_s: Moment
    chunks: Sequence[C]
    end_s: Moment
    is_broken: bool = False

    def header(self, name: str) -> str:
        """The first header of that name, in lower case; empty without any."""
        return next((value for each, value in self.headers if each.lower() == name), "")


class Asked(Struct, frozen=True):
    """An exchange as far as its request goes; `at_s` is its arrival, in seconds since the recording began."""

    at_s: float
    request: Request


class Answered(Struct, frozen=True):
    """An exchange as far as its answer goes, whose chunks are read one by one, each when it is due."""

    answer: Answer[Raw]


class Exchange(Struct, frozen=True):
    """A line of the file."""

    at_s: float
    request: Request
    answer: Answer[Chunk]


def sendable(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers that can be sent: no folded lines, valid names (RFC 9112, section 5)."""
    return [each for each in headers if _NAME.fullmatch(each[0]) and _VALUE.fullmatch(each[1])]


def data_of(content: bytes) -> Data:
    """Returns `content` as it is written into the file."""
    if _CONTROL.search(content) is None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return Binary(b64encode(content).decode())


def bytes_of(data: Data) -> bytes:
    """Returns the bytes that `data_of` was given. ValueError for base64 that is none."""
    return data.encode() if isinstance(data, str) else b64decode(data.base64, validate=True)


_asked = msgspec.json.Decoder(Asked)
_answered = msgspec.json.Decoder(Answered)
_exchange = msgspec.json.Decoder(Exchange)
read_asked, read_answered, read_exchange = _asked.decode, _answered.decode, _exchange.decode
"""Of a line. msgspec.MsgspecError when it is no exchange."""
read_chunk = msgspec.json.Decoder(Chunk).decode


def line_of(item: Header | Exchange) -> bytes:
    return msgspec.json.encode(item) + b"\n"


def check_header(line: bytes, path: str) -> Header:
    """The header that a file begins with. RecordingError when it is none, or of another version."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        raise RecordingError(f"{path}: is no recording of {COMMAND} record --proxy") from None
    if header.format != FORMAT:
        raise RecordingError(f"{path}: is no recording of {COMMAND} record --proxy")
    if header.version != VERSION:
        raise RecordingError(f"{path}: has version {header.version} of the format; this is for {VERSION}")
    return header
