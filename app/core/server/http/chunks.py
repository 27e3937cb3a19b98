"""Chunked request bodies (RFC 9112 section 7.1), refused as soon as a chunk declares too much."""

import re
from typing import Any

from gunicorn.http.body import CHUNK_EXT_RE, ChunkedReader
from gunicorn.http.errors import (
    InvalidChunkExtension,
    InvalidChunkSize,
    NoMoreData,
    ParseException,
)

MAX_SIZE_DIGITS = 16
"""Most hexadecimal digits of a chunk's size; more would overflow 64 bits in other servers."""
MAX_LINE_BYTES = 4096
"""Most bytes of the line in front of a chunk."""
MAX_EXTENSION_BYTES = 1 << 14
"""Most bytes of all chunk extensions of a body, as in Node.js; they carry no content."""
MAX_TRAILER_BYTES = 1 << 14
"""Most bytes of the trailers after the last chunk."""
SIZE = re.compile(rb"[0-9A-Fa-f]{1,%d}" % MAX_SIZE_DIGITS)
MAX_QUOTED_BYTES = 40
"""Most bytes of a malformed line that an error quotes."""


class BodyTooLargeError(Exception):
    """The chunks declare more bytes than the body may have."""


class BoundedChunks(ChunkedReader):  # type: ignore[misc]
    """gunicorn's reader with limits that apply before a chunk's bytes arrive."""

    def __init__(self, request: Any, unreader: Any) -> None:
        super().__init__(request, unreader)
        self.max_bytes: int | None = None
        """Most bytes of the whole body; None: no limit."""
        self.malformed: ParseException | None = None
        """Why the body is not chunked as HTTP demands; None as long as it is."""
        self.limit_trailer_section = MAX_TRAILER_BYTES
        self._declared_bytes = 0
        self._extension_bytes = 0

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes.

        Raises:
            ParseException: a chunk or a trailer is malformed.
            BodyTooLargeError: as `parse_chunk_size`.
        """
        try:
            part: bytes = super().read(size)
        except ParseException as error:
            self.malformed = error
            raise
        return part

    def parse_chunk_size(
        self, unreader: Any, data: bytes | None = None
    ) -> tuple[int, bytes | None]:
        """Returns the size of the next chunk, and the bytes after its line.

        After the last chunk the size is 0, and no bytes follow (None).

        Raises:
            ParseException: the line or the trailers are malformed, or too long.
            BodyTooLargeError: the chunks declare more than `max_bytes`.
            NoMoreData: the client ends the connection.
        """
        line, following = self._read_line(unreader, data or b"")
        digits, semicolon, extensions = line.partition(b";")
        if semicolon:
            digits = digits.rstrip(b" \t")
        if b"\r" in extensions:
            raise InvalidChunkExtension("a carriage return is not followed by a line feed")
        if SIZE.fullmatch(digits) is None:
            raise InvalidChunkSize(digits[:MAX_QUOTED_BYTES])
        if semicolon:
            self._check_extensions(extensions)
        size = int(digits, 16)
        if size == 0:
            self.parse_trailers(unreader, following)
            return 0, None
        self._declared_bytes += size
        if self.max_bytes is not None and self._declared_bytes > self.max_bytes:
            raise BodyTooLargeError
        return size, following

    def _read_line(self, unreader: Any, data: bytes) -> tuple[bytes, bytes]:
        """Returns the first line, without its end, and the bytes after it."""
        end = data.find(b"\r\n")
        while end < 0 and len(data) <= MAX_LINE_BYTES and b"\n" not in data:
            received = unreader.read()
            if not received:
                raise NoMoreData
            data += received
            end = data.find(b"\r\n")
        if end < 0 or end > MAX_LINE_BYTES or b"\n" in data[:end]:
            raise InvalidChunkSize(data[:MAX_QUOTED_BYTES])
        return data[:end], data[end + 2 :]

    def _check_extensions(self, extensions: bytes) -> None:
        self._extension_bytes += len(extensions)
        if self._extension_bytes > MAX_EXTENSION_BYTES:
            raise InvalidChunkExtension(f"the chunk extensions exceed {MAX_EXTENSION_BYTES} bytes")
        if CHUNK_EXT_RE.fullmatch(b";" + extensions) is None:
            raise InvalidChunkExtension("the syntax does not follow RFC 9112")
