"""Equality and similarity of requests.

Requests are equal when method, path, query and normalized body are. A JSON object is normalized: secrets
masked, keys sorted, VOLATILE fields removed. Other bodies are compared byte by byte.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from operator import eq
from urllib.parse import unquote
from zlib import crc32

import msgspec
from msgspec import Struct

from app.serving.middleware.masking import mask_query

VOLATILE = frozenset(
    (
        *("user", "request_id", "metadata", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "cache_salt", "priority", "service_tier"),
    )
)
"""Fields about the client or scheduling, which do not change the answer."""
MOST_TURNS = 512
"""Most turns compared: the last ones of a conversation."""
MOST_WORDS = 64
MOST_CHARACTERS = 1 << 14
"""Characters of a turn that are searched for words."""
_BOUNDARY = re.compile(r'boundary="?([^";,]+)')
_WORD = re.compile(r"\w+")
DIGEST_BYTES = 16
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_encoder = msgspec.json.Encoder(order="sorted")


class Likeness(Struct, frozen=True):
    """The parts of a JSON request that are compared to find the most similar one."""

    stream: bool
    roles: bytes
    """Hash of the roles of all compared turns, in order."""
    turns: array[int]
    """Hashes of messages, inputs or prompts, 8 bytes each."""
    words: frozenset[int]
    """Hashes of words of the last turn."""
    model: object
    rest: bytes
    """Hash of all other fields."""

    @property
    def size_bytes(self) -> int:
        return 800 + 8 * len(self.turns) + 80 * len(self.words)

    def rank(self, other: Likeness) -> tuple[bool, int, float, bool, bool]:
        """Similarity as a tuple; larger is more similar.

        Order of comparison: equal roles, number of equal turns at equal positions, shared words of the last
        turn, model, all other fields.
        """
        shared = len(self.words & other.words) / (len(self.words | other.words) or 1)
        return (
            self.roles == other.roles,
            sum(map(eq, self.turns, other.turns)),
            shared,
            self.model == other.model,
            self.rest == other.rest,
        )


class RequestForm(Struct, frozen=True):
    """Lookup form of a request. Equal requests share `key`; requests for the same route share `place`."""

    key: bytes
    place: bytes
    model: str | None
    likeness: Likeness | None
    """None for a body that is not a JSON object."""


def form_of(method: str, target: str, content_type: str, body: bytes, alike: bool) -> RequestForm:
    """Builds the lookup form, with secrets of the target masked. With `alike`, adds the likeness of a JSON
    object.
    """
    path, mark, query = mask_query(target).partition("?")
    place = hash_of([f"{method} {unquote(path)}{mark}{query}".encode()])
    fields = json_object(body)
    try:
        if fields is not None:
            return _form_of_fields(place, fields, alike)
    except (ValueError, RecursionError):  # JSON that cannot be encoded again
        pass
    boundary = _BOUNDARY.search(content_type) if content_type.startswith("multipart/") else None
    if boundary is not None:  # differs in every request
        body = body.replace(boundary[1].encode("latin-1", "replace"), b"boundary")
    return RequestForm(hash_of((place, body)), place, None, None)


def _form_of_fields(place: bytes, fields: dict[str, object], alike: bool) -> RequestForm:
    known = {name: _plain(value) for name, value in fields.items() if name not in VOLATILE}
    known = {name: value for name, value in known.items() if value is not None}
    model = known.get("model")
    return RequestForm(
        hash_of((place, digest(known))),
        place,
        model if isinstance(model, str) else None,
        _likeness(known) if alike else None,
    )


def _plain(value: object) -> object:
    """Makes 1.0 equal to 1: clients write either."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _likeness(fields: dict[str, object]) -> Likeness:
    name = next((name for name in ("messages", "input", "prompt") if name in fields), "")
    value = fields.get(name)
    turns = value[-MOST_TURNS:] if isinstance(value, list) else [value]
    roles = [turn.get("role") or turn.get("type") if isinstance(turn, dict) else None for turn in turns]
    words = _WORD.findall(_text(turns[-1])[:MOST_CHARACTERS].lower()) if turns else ()
    rest = {key: value for key, value in fields.items() if key not in (name, "model", "stream")}
    return Likeness(
        fields.get("stream") is True,
        digest(roles),
        array("Q", (int.from_bytes(digest(turn)[:8]) for turn in turns)),
        frozenset(crc32(word.encode()) for word in words[:MOST_WORDS]),
        fields.get("model"),
        digest(rest),
    )


def _text(turn: object) -> str:
    """Text of a message, an input or a prompt; empty without text."""
    content = turn.get("content", turn.get("output")) if isinstance(turn, dict) else turn
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def json_object(body: bytes) -> dict[str, object] | None:
    """Returns the JSON object in `body`; None for other content."""
    if _OBJECT.match(body) is None:
        return None
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def digest(value: object) -> bytes:
    """Hashes a JSON value.

    ValueError or RecursionError for values that JSON cannot encode: half a surrogate pair, integers beyond 64
    bits, deep nesting.
    """
    try:
        return blake2b(_encoder.encode(value), digest_size=DIGEST_BYTES).digest()
    except OverflowError as error:
        raise ValueError(str(error)) from None


def hash_of(parts: Sequence[bytes]) -> bytes:
    """Hashes `parts`; the same bytes split differently have another hash."""
    made = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()
