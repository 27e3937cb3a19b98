"""A hash of JSON that is the same however it was written: with keys in any order, blanks, escapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

DIGEST_BYTES = 16
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_encoder = msgspec.json.Encoder(order="sorted")


def json_object(body: bytes) -> dict[str, object] | None:
    """Returns the JSON object in `body`; None when it has something else."""
    if _OBJECT.match(body) is None:
        return None
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def digest(value: object) -> bytes:
    """Returns the hash of a JSON value.

    ValueError or RecursionError for what JSON cannot be made of: half a surrogate pair, numbers beyond 64
    bits, and what is nested deeply.
    """
    try:
        return blake2b(_encoder.encode(value), digest_size=DIGEST_BYTES).digest()
    except OverflowError as error:
        raise ValueError(str(error)) from None


def hash_of(parts: Sequence[bytes]) -> bytes:
    """Returns the hash of some bytes, which is another one where they are parted otherwise."""
    made = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()
