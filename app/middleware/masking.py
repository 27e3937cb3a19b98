"""What nobody should read in a log: the values of names that sound like secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

MASK = "***"
_WORDS = (
    *("key", "keys", "apikey", "apikeys", "token", "secret", "secrets", "password", "passwd", "passphrase"),
    *("authorization", "cookie", "cookies", "credential", "credentials", "signature"),
)
_LONGEST = max(map(len, _WORDS))
_SECRET = re.compile(rf"(?:.*[^a-z])?(?:{'|'.join(_WORDS)})", re.S)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_QUERY = re.compile(r"([?&;])([^=&;]*)=([^&;]*)")


def is_secret(name: str) -> bool:
    """True for the name of a header, field or parameter whose value nobody should read.

    Those are names whose last word is one of the above: `api_key`, `X-Api-Key`, `hfToken` are, `max_tokens`
    and `token_ids` are not.
    """
    return _SECRET.fullmatch(_CAMEL.sub("-", name).lower()) is not None


def may_be_secret(text: str, start: int, end: int) -> bool:
    """Whether the name from `start` to `end` is worth a look: quick, for there may be many."""
    return text[max(start, end - _LONGEST) : end].lower().endswith(_WORDS)


def mask_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values; those of secrets are replaced."""
    return {name: MASK if is_secret(name) else value for name, value in headers}


def mask_query(path: str) -> str:
    """A path with its query, without the values of secret parameters."""
    return _QUERY.sub(_mask_parameter, path)


def _mask_parameter(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    return f"{before}{name}={MASK if is_secret(unquote(name)) else value}"
