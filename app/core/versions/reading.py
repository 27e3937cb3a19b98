"""Reads the bodies of requests as an older version of vLLM does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from config.untrusted import UntrustedDataError, decode_untrusted, python_json

if TYPE_CHECKING:
    from app.core.versions.change import Reading


def read_body(body: bytes, readings: Sequence[Reading]) -> bytes:
    """Returns a request's body as the newest version would receive it.

    A body that is not a JSON object is returned unchanged: its decoding reports the error.

    Raises:
        ApiError: The older version refuses the request.
    """
    is_finite = True
    try:
        values = decode_untrusted(body)
    except UntrustedDataError:
        is_finite = False
        try:
            values = decode_untrusted(body, decoder=python_json)
        except UntrustedDataError:
            return body
    if not isinstance(values, dict):
        return body
    for reading in readings:
        reading.read(values)
    return msgspec.json.encode(values) if is_finite else json.dumps(values).encode()
