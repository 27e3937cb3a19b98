"""Masks the secrets of an exchange before it is kept, in headers, queries and bodies."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence

from app.serving.middleware.masking import MASK, is_secret, mask_pieces
from app.serving.recording.exchange import MOST_BODY_BYTES, Headers

MOST_PLAIN_BYTES = 4 * MOST_BODY_BYTES
"""Most decompressed bytes of a body that are searched for secrets."""
_BEYOND = re.compile(r"[^\x00-\xff]")
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""Content codings that zlib reads, with its `wbits` argument (RFC 9110, section 8.4.1)."""


class HiddenSecrets(Exception):
    """A body has secrets that cannot be masked, or may have some. The text gives the reason."""


def masked_headers(headers: Headers) -> list[tuple[str, str]]:
    return [(name, MASK if is_secret(name) else value) for name, value in headers]


def masked_pieces(pieces: Sequence[bytes], coding: str = "") -> list[bytes]:
    """Masks the secrets in the parts of a body.

    HiddenSecrets: a body with a content `coding` has secrets or cannot be decoded.
    """
    if coding.strip().lower() in ("", "identity"):
        # Latin-1 maps each byte to one character, so parts may end anywhere and no byte is lost.
        return [_latin1(piece) for piece in mask_pieces([piece.decode("latin-1") for piece in pieces])]
    plain = _decompressed(b"".join(pieces), coding.strip().lower()).decode("latin-1")
    if mask_pieces([plain]) != [plain]:
        raise HiddenSecrets(f"there are secrets in its {coding} body")
    return list(pieces)


def _latin1(text: str) -> bytes:
    """Encodes `text` as Latin-1; characters decoded from JSON escapes become escapes again."""
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
