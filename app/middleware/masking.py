"""Hides what looks like a secret in things that are logged.

A name is a secret's when its last word is one of those below: `api_key`, `X-Api-Key`, `hfToken` are,
`max_tokens` and `token_ids` are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_WORDS = (
    "keys?|apikeys?|token|secrets?|password|passwd|passphrase|authorization|cookies?|credentials?|signature"
)
_SECRET = re.compile(rf"(?:.*[^a-z])?(?:{_WORDS})", re.S)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BEARER = re.compile(r"\b(Bearer\s+)[\w.~+/=-]+", re.I)
_QUERY = re.compile(r"([?&;])([^=&;]*)=([^&;]*)")
_FIELD = re.compile(
    rf'"([^"\\]*(?:{_WORDS}))"'  # a name
    r'(\s*:\s*)("(?:[^"\\]|\\.)*(?:"|\Z)|\[[^\[\]{}]*(?:\]|\Z))',  # a text or a list, or the beginning of one
    re.I | re.S,
)
_LOGPROB = re.compile(r'\s*,\s*"(?:logprob|bytes)"')
"""What follows the `token` of a log probability, which is no secret."""


def is_secret(name: str) -> bool:
    """True for the name of a header, field or parameter whose value nobody should read."""
    return _SECRET.fullmatch(_CAMEL.sub("-", name).lower()) is not None


def mask_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values; those of secrets are replaced."""
    return {name: MASK if is_secret(name) else value for name, value in headers}


def mask_query(path: str) -> str:
    """A path with its query, without the values of secret parameters."""
    return _QUERY.sub(lambda found: f"{found[1]}{found[2]}={MASK if is_secret(found[2]) else found[3]}", path)


def mask_text(text: str) -> str:
    """A body: texts and lists in JSON fields with a secret name, and bearer keys anywhere, are replaced.

    It need not be valid JSON, and may be cut anywhere.
    """
    return _BEARER.sub(rf"\1{MASK}", _FIELD.sub(_masked_field, text))


def _masked_field(found: re.Match[str]) -> str:
    name, between, _ = found.groups()
    is_logprob = name == "token" and _LOGPROB.match(found.string, found.end())
    return found[0] if is_logprob or not is_secret(name) else f'"{name}"{between}"{MASK}"'
