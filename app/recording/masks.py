"""Masks the secrets of an exchange before it is kept, in headers, queries and bodies."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence

from app.middleware.masking import MASK, is_secret, mask_pieces
from app.recording.exchange import MOST_BODY_BYTES, Headers

MOST_PLAIN_BYTES = 4 * MOST_BODY_BYTES
"""Of a compressed body that is looked into."""
_BEYOND = re.compile(r"[^\x00-\xff]")
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""Content codings that zlib knows, and what it has to be told (RFC 9110, section 8.4.1)."""


class HiddenSecrets(Exception):
    """Why a body cannot be kept without the secrets that it has, or may have."""


def masked_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name, MASK if is_secret(name) else value) for name, value in headers]


def masked_pieces(pieces: Sequence[bytes], coding: str = "") -> list[bytes]:
    """The pieces of a body without its secrets.

    HiddenSecrets when its content `coding` hides some, or cannot be read.
    """
    if coding.strip().lower() in ("", "identity"):
        # As Latin-1 a byte is a character: pieces may end anywhere, and nothing is lost.
        return [_latin1(piece) for piece in mask_pieces([piece.decode("latin-1") for piece in pieces])]
    plain = _decompressed(b"".join(pieces), coding.strip().lower()).decode("latin-1")
    if mask_pieces([plain]) != [plain]:
        raise HiddenSecrets(f"there are secrets in its {coding} body")
    return list(pieces)


def _latin1(text: str) -> bytes:
    """`text` as bytes; what an escape in a text in JSON stood for is an escape again."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return _BEYOND.sub(_escaped, text).encode("latin-1")


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _decompressed(body: bytes, coding: str) -> bytes:
    if coding not in _WINDOWS:
        raise HiddenSecrets(f"its content coding {coding} cannot be read")
    reader = zlib.decompressobj(_WINDOWS[coding])
    try:
        plain = reader.decompress(body, MOST_PLAIN_BYTES)
    except zlib.error as error:
        raise HiddenSecrets(f"its {coding} body is broken: {error}") from None
    if reader.unconsumed_tail or reader.unused_data:
        raise HiddenSecrets(f"its {coding} body has several parts, or more than {MOST_PLAIN_BYTES >> 20} MiB")
    return plain
