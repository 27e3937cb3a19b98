"""The form of a request that finds its exchange in a recording: `request_form`.

Requests are equal when method, path, query and normalized body are. A JSON object is normalized:
secrets masked, keys sorted, VOLATILE fields removed. Other bodies are compared byte by byte.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from operator import eq

import msgspec
from msgspec import Struct

from app.core.server.middleware.masking import mask_query
from app.extensions.recording.conversation import position_of
from config.untrusted import UntrustedDataError, decode_untrusted

VOLATILE = frozenset(
    (
        "cache_salt",
        "metadata",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "user",
    )
)
"""Fields about the client or scheduling, which do not change the answer."""
TURN_FIELDS = ("messages", "input", "prompt")
MAX_TURNS = 64
"""Most turns compared: the last ones of a conversation."""
MAX_WORDS = 64
"""Most words of the last turn that are compared."""
MAX_SEARCHED_LENGTH = 1 << 14
"""Characters of a turn that are searched for words."""
DIGEST_BYTES = 16
SEPARATORS = (b"/", b"?", b"#", b"%", b"\\")
"""Bytes that mean something else in a path when they are percent-encoded."""
UNWRITABLE = (ValueError, OverflowError, RecursionError)
"""Errors of JSON values that cannot be encoded again."""
_BOUNDARY = re.compile(r'boundary="?([^";,]+)')
_WORD = re.compile(r"\w+")
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_encoder = msgspec.json.Encoder(order="sorted")


class SimilarityFeatures(Struct, frozen=True):
    """The parts of a JSON request that are compared to find the most similar one."""

    stream: bool
    roles: bytes
    """Hash of the roles of all compared turns, in order."""
    turns: Sequence[bytes]
    """Hashes of messages, inputs or prompts."""
    words: frozenset[str]

    def rank(self, other: "SimilarityFeatures") -> tuple[bool, int, float]:
        """Returns a sort key for the similarity of two requests.

        Its parts are equal roles, the number of equal turns at equal positions, and the share of
        equal words in the last turn.
        """
        shared = len(self.words & other.words) / (len(self.words | other.words) or 1)
        return self.roles == other.roles, sum(map(eq, self.turns, other.turns)), shared


class RequestForm(Struct, frozen=True):
    """Lookup form of a request.

    Equal requests share `key`; requests for the same route share `route`, a hash.
    """

    key: bytes
    route: bytes
    model: str | None
    features: SimilarityFeatures | None
    """None for a body that is not a JSON object."""


def request_form(
    method: str,
    target: str,
    *,
    content_type: str,
    body: bytes,
    with_features: bool,
    by_turn: bool = False,
) -> RequestForm:
    """Returns the form of a request; `with_features` includes what finds similar requests.

    `by_turn`: requests at the same position of a conversation are equal.
    """
    path, mark, query = mask_query(target).partition("?")
    query = mark + query
    route = hash_of(b"%b %b%b" % (method.encode(), comparable_path(path), query.encode()))
    fields = json_object(body)
    if by_turn and fields is not None:
        position = position_of(path, fields)
        if position is not None:
            key = digest(msgspec.structs.asdict(position), route)
            return RequestForm(key, route, _model_name(fields), None)
    if fields is not None:
        with suppress(*UNWRITABLE):
            return _json_form(_normalized(fields), route, with_features)
    if content_type.startswith("multipart/"):
        boundary = _BOUNDARY.search(content_type)
        if boundary is not None:  # differs in every request
            body = body.replace(boundary[1].encode("latin-1", "replace"), b"boundary")
    return RequestForm(hash_of(body, route), route, None, None)


def _json_form(fields: dict[str, object], route: bytes, with_features: bool) -> RequestForm:
    key = digest(fields, route)
    return RequestForm(
        key=key,
        route=route,
        model=_model_name(fields),
        features=_features(fields) if with_features else None,
    )


def _normalized(fields: dict[str, object]) -> dict[str, object]:
    normalized: dict[str, object] = {}
    for name, value in fields.items():
        if name not in VOLATILE and value is not None:
            if isinstance(value, float) and value.is_integer():
                value = int(value)  # clients write 1 or 1.0
            normalized[name] = value
    return normalized


def comparable_path(path: str) -> bytes:
    """Decodes a path, except for encoded separators.

    `%2F` is not a slash, and `%25` begins no escape.
    """
    return _ESCAPE.sub(_decoded_byte, path.encode())


def _decoded_byte(match: re.Match[bytes]) -> bytes:
    byte = bytes.fromhex(match[1].decode())
    return match[0].upper() if byte in SEPARATORS else byte


def _features(fields: dict[str, object]) -> SimilarityFeatures:
    value = next((fields[name] for name in TURN_FIELDS if name in fields), None)
    turns = value[-MAX_TURNS:] if isinstance(value, list) else [value]
    roles: list[object] = []
    for turn in turns:
        roles.append(turn.get("role") or turn.get("type") if isinstance(turn, dict) else None)
    words: list[str] = []
    if turns:
        words = _WORD.findall(text_of(turns[-1])[:MAX_SEARCHED_LENGTH].lower())
    return SimilarityFeatures(
        stream=fields.get("stream") is True,
        roles=digest(roles),
        turns=[digest(turn) for turn in turns],
        words=frozenset(words[:MAX_WORDS]),
    )


def text_of(turn: object) -> str:
    """Returns the text of a message, an input or a prompt; empty without text."""
    content = turn
    if isinstance(turn, dict):
        content = turn.get("content", turn.get("output"))
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def json_object(body: bytes) -> dict[str, object] | None:
    """Returns the JSON object in `body`; None for other content."""
    if _OBJECT.match(body) is None:
        return None
    try:
        value = decode_untrusted(body)
    except UntrustedDataError:
        return None
    return value if isinstance(value, dict) else None


def model_of(body: bytes) -> str | None:
    """Returns the model that a JSON body names; None without one."""
    return _model_name(json_object(body) or {})


def _model_name(fields: dict[str, object]) -> str | None:
    model = fields.get("model")
    return model if isinstance(model, str) else None


def digest(value: object, route: bytes = b"") -> bytes:
    """Hashes a JSON value.

    Raises:
        one of UNWRITABLE: the value cannot be encoded, such as half a surrogate pair.
    """
    return hash_of(_encoder.encode(value), route)


def hash_of(content: bytes, route: bytes = b"") -> bytes:
    """Hashes bytes, with the hash of a route as key."""
    return blake2b(content, digest_size=DIGEST_BYTES, key=route).digest()
