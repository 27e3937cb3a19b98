"""Reads the forms of requests with a file: multipart bodies, and bodies of encoded fields.

Werkzeug's decoder gets slices of a body, and the reader pauses between them. It has the limits
of vLLM's server. Start reading at `read_form`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from app.core.base.clock.pause import pause_if_possible
from app.core.server.http.errors import ApiError

MULTIPART = "multipart/form-data"
ENCODED = "application/x-www-form-urlencoded"
SLICE_BYTES = 1 << 17
"""Bytes that are decoded between two pauses: a millisecond."""
MAX_BUFFER_BYTES = 1 << 18
"""Bytes of a preamble, or of the head of a part, with the next slice of the body."""
MAX_FIELDS = 1_000
"""Fields, and also files, of a form."""
MAX_FIELD_BYTES = 1 << 20
"""Bytes of the value of a field that is no file."""


class UploadedFile(Struct, frozen=True):
    """A file in a form."""

    name: str
    data: bytes

    def __repr__(self) -> str:
        """Returns a text for errors, without the data."""
        return f"UploadFile(filename={self.name!r}, size={len(self.data)})"


FormValue = str | UploadedFile


class _FormReader:
    """Collects the parts of a multipart body."""

    def __init__(self) -> None:
        self.values: dict[str, FormValue] = {}
        self._part: Field | File | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._field_count = 0
        self._file_count = 0

    def begin(self, part: Field | File) -> None:
        """Begins a part. Raises `ApiError` 400 for one too many, or one without a name."""
        if part.name is None:
            raise form_error('The Content-Disposition header field "name" must be provided.')
        if isinstance(part, File):
            self._file_count += 1
        else:
            self._field_count += 1
        if self._file_count > MAX_FIELDS:
            raise form_error(f"Too many files. Maximum number of files is {MAX_FIELDS}.")
        if self._field_count > MAX_FIELDS:
            raise form_error(f"Too many fields. Maximum number of fields is {MAX_FIELDS}.")
        self._part = part
        self._pieces = []
        self._size = 0

    def add(self, data: bytes, is_end: bool) -> None:
        """Adds bytes to the part. Raises `ApiError` 400 for a long field."""
        part = self._part
        assert part is not None
        self._pieces.append(data)
        self._size += len(data)
        if isinstance(part, Field) and self._size > MAX_FIELD_BYTES:
            raise form_error(f"Part exceeded maximum size of {MAX_FIELD_BYTES >> 10}KB.")
        if not is_end:
            return
        content = b"".join(self._pieces)
        self._pieces = []
        if isinstance(part, File):
            self.values[part.name] = UploadedFile(part.filename, content)
        else:
            self.values[part.name] = content.decode("utf-8", "replace")


def form_error(message: str) -> ApiError:
    """Returns the error of vLLM's server for a form that cannot be read."""
    return ApiError(400, "Bad Request", message)


def read_form(body: bytes, content_type: str | None) -> Mapping[str, FormValue]:
    """Returns the last value of each name in a form; nothing for another body. May pause.

    An empty text counts as absent, as in vLLM's server.

    Raises:
        ApiError: Status 400 for a form that cannot be read.
    """
    kind, options = parse_options_header(content_type)
    if kind == MULTIPART:
        values = _read_multipart(body, options.get("boundary"))
    elif kind == ENCODED:
        values = _read_encoded(body)
    else:
        return {}
    return {name: value for name, value in values.items() if value != ""}


def _read_multipart(body: bytes, boundary: str | None) -> dict[str, FormValue]:
    if not boundary:
        raise form_error("Missing boundary in multipart.")
    try:
        decoder = MultipartDecoder(boundary.encode("latin-1"), MAX_BUFFER_BYTES)
        return _decode_parts(decoder, body)
    except (ValueError, RequestEntityTooLarge):  # UnicodeError is a ValueError
        raise form_error("Invalid multipart data.") from None


def _decode_parts(decoder: MultipartDecoder, body: bytes) -> dict[str, FormValue]:
    """Raises `ApiError` for fields against the limits, and the errors of the decoder."""
    reader = _FormReader()
    for start in range(0, len(body) + SLICE_BYTES, SLICE_BYTES):
        decoder.receive_data(body[start : start + SLICE_BYTES] or None)
        while True:
            event = decoder.next_event()
            if isinstance(event, Field | File):
                reader.begin(event)
            elif isinstance(event, Data):
                reader.add(event.data, not event.more_data)
            elif isinstance(event, NeedData | Epilogue):
                break
        if start + SLICE_BYTES < len(body):
            pause_if_possible()
    return reader.values


def _read_encoded(body: bytes) -> dict[str, FormValue]:
    """Returns encoded fields. Such a form has no files."""
    if len(body) > MAX_FIELD_BYTES:
        raise form_error(f"Field exceeded maximum size of {MAX_FIELD_BYTES >> 10}KB.")
    try:
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise form_error(f"Too many fields. Maximum number of fields is {MAX_FIELDS}.") from None
    return dict(pairs)
