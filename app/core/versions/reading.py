"""Reads the bodies of requests as an older version of vLLM does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from app.core.server.http.errors import bad_request

if TYPE_CHECKING:
    from app.core.versions.change import Reading


def check_json(text: object) -> None:
    """Raises ApiError 400 for a text that is not JSON, with the words of Python's parser."""
    if not isinstance(text, str) or not text:
        return
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(str(error)) from None


def read_body(body: bytes, readings: Sequence[Reading]) -> bytes:
    """Returns a request's body as the newest version would receive it.

    A body that is not a JSON object is returned unchanged: its decoding reports the error.

    Raises:
        ApiError: The older version refuses the request.
    """
    encode: Callable[[Any], bytes] = msgspec.json.encode
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            values = json.loads(body)  # Python's JSON has numbers that are not finite, too
        except (ValueError, RecursionError):
            return body
        encode = _encode_python
    if not isinstance(values, dict):
        return body
    for reading in readings:
        reading.read(values)
    return encode(values)


def _encode_python(values: object) -> bytes:
    return json.dumps(values).encode()
