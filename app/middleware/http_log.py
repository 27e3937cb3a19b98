"""`log-http`: every request and every whole answer as one line of JSON, without the secrets in them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable

from app.http.context import RequestContext
from app.http.response import Response
from app.middleware.stack import Middleware
from config.settings import Settings

log = logging.getLogger(__name__)

MOST_BYTES = 512 << 10
"""So much of a body is logged; the rest is cut off."""


class HttpLog(Middleware):
    """Logs exchanges while the setting is on."""

    active = False

    def on_settings(self, settings: Settings) -> None:
        self.active = settings.log.log_http

    def end(self, context: RequestContext, response: Response) -> None:
        """Write the line. What was not read of the request's body is not in it."""
        if log.isEnabledFor(logging.INFO):
            log.info("%s", json.dumps({**_request(context), **_response(response)}))


def _request(context: RequestContext) -> dict[str, object]:
    body = context.body_read
    return {
        "method": context.method,
        "path": mask_query(context.target),
        "client": context.client,
        "headers": mask_headers((name.title(), value) for name, value in context.headers.items()),
        "body": _text(body[:MOST_BYTES], len(body)),
    }


def _response(response: Response) -> dict[str, object]:
    body = response.body
    whole = b"".join(body) if isinstance(body, list | tuple) else body
    return {
        "status": response.status,
        "response_headers": mask_headers(response.header_items()),
        "response": _text(whole[:MOST_BYTES], len(whole))
        if isinstance(whole, bytes) and not response.streamed
        else "(stream)",
    }


def _text(kept: bytes, length: int) -> str:
    text = mask_text(kept.decode(errors="replace"))
    return text if len(kept) == length else f"{text}... ({length} bytes)"


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
    """True for the name of a header, field or parameter whose value nobody should read.

    Those are names whose last word is one of the above: `api_key`, `X-Api-Key`, `hfToken` are, `max_tokens`
    and `token_ids` are not.
    """
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
