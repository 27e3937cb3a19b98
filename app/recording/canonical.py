"""A hash of JSON that is the same however it was written: with keys in any order, blanks, escapes.

What is long is read and written in slices, with pauses in between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from app.clock.pause import Slices
from app.protocol import long_json

SHORT = 1 << 14
"""Bytes that are read and written in one go, which takes 4 ms at most."""
CHARS = 16
"""Characters of a text that count as one value written."""
BYTES = 256
"""Bytes that count as one value hashed."""
LONG = 1 << 20
"""Bytes that are hashed in one go, which takes 1 ms."""
NESTED = 5
"""Values that a list or an object counts as besides what is in it."""
RUN = 1000
"""Scalars that are written in one go."""
SCALARS = frozenset((str, int, float, bool, type(None)))
DIGEST_BYTES = 16
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_encoder = msgspec.json.Encoder(order="sorted")


def json_object(body: bytes, within: Slices) -> dict[str, object] | None:
    """The JSON object in `body`; None when it has something else."""
    if _OBJECT.match(body) is None:
        return None
    try:
        value = msgspec.json.decode(body) if len(body) <= SHORT else long_json.parse(body, within)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def digest(value: object, within: Slices, short: bool = False) -> bytes:
    """Hash of a JSON value, at once when it is `short`. ValueError or RecursionError for what JSON cannot be
    made of: half a surrogate pair, numbers beyond 64 bits, and what is nested deeply.
    """
    canonical = _Canonical(within)
    try:
        if short:
            canonical.hash.update(_encoder.encode(value))
        else:
            canonical.add(value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return canonical.hash.digest()


def hash_of(parts: Sequence[bytes], within: Slices) -> bytes:
    """Hash of some bytes, which is another one where they are parted otherwise."""
    made = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        made.update(len(part).to_bytes(8))
        for start in range(0, len(part), LONG):
            made.update(memoryview(part)[start : start + LONG])
            within.spend(min(len(part), LONG) // BYTES)
    return made.digest()


class _Canonical:
    """Feeds `hash` with what msgspec would write of a whole value."""

    def __init__(self, within: Slices) -> None:
        self.hash = blake2b(digest_size=DIGEST_BYTES)
        self._within = within

    def add(self, value: object) -> None:
        if isinstance(value, dict):
            self._add_object(value)
        elif isinstance(value, list):
            self._add_list(value)
        elif isinstance(value, str) and len(value) > SHORT:
            self._add_text(value)
        else:
            self._within.spend()
            self.hash.update(_encoder.encode(value))

    def _add_text(self, text: str) -> None:
        self.hash.update(b'"')
        for start in range(0, len(text), SHORT):
            self.hash.update(_encoder.encode(text[start : start + SHORT])[1:-1])
            self._within.spend(SHORT // CHARS)
        self.hash.update(b'"')

    def _add_object(self, members: dict[str, object]) -> None:
        comma = b"{"
        self._within.spend(NESTED + len(members))
        for name in sorted(members):
            self.hash.update(comma + _encoder.encode(name) + b":")
            self.add(members[name])
            comma = b","
        self.hash.update(b"}" if members else b"{}")

    def _add_list(self, items: list[object]) -> None:
        comma = b"["
        self._within.spend(NESTED)
        for part in self._within.parts(items, RUN, RUN):
            if SCALARS.issuperset(map(type, part)):
                self.hash.update(comma + _encoder.encode(part)[1:-1])
                comma = b","
                continue
            for item in part:
                self.hash.update(comma)
                self.add(item)
                comma = b","
        self.hash.update(b"]" if items else b"[]")
