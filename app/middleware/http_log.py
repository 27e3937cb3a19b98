"""`log-http`: every request and every whole answer as one line of JSON, without the secrets in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from flask import Flask, request

from app.http.response import Reply
from app.middleware.masking import mask_headers, mask_query, mask_text
from config.live import LiveSettings
from config.settings import Settings

log = logging.getLogger(__name__)

MOST_BYTES = 512 << 10
"""So much of a body is logged; the rest is cut off."""
INPUT = "wsgi.input"


def init_http_log(app: Flask, live: LiveSettings) -> None:
    """Log the exchanges of `app` while the setting is on.

    Call it before hooks that change responses are registered: Flask runs those in reverse.
    """
    http_log = HttpLog()
    live.subscribe(http_log.follow)
    app.before_request(http_log.listen)
    app.after_request(http_log.write)


class HttpLog:
    """Keeps what is read of a request's body until its response is there."""

    def __init__(self) -> None:
        self._on = False

    def follow(self, settings: Settings) -> None:
        self._on = settings.log.log_http

    def listen(self) -> None:
        """Before the request: whoever reads its body lets us hear."""
        if self._on:
            request.environ[INPUT] = Overheard(request.environ[INPUT])

    def write(self, reply: Reply) -> Reply:
        """After the request: the line. What nobody read of its body is not in it."""
        heard = request.environ.get(INPUT)
        if isinstance(heard, Overheard) and log.isEnabledFor(logging.INFO):
            log.info("%s", json.dumps({**_asked(heard), **_answered(reply)}))
        return reply


class Overheard:
    """A request's body that remembers the beginning of what was read of it."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.kept = b""
        self.bytes_read = 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self.bytes_read += len(data)
        self.kept += data[: MOST_BYTES - len(self.kept)]
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def _asked(heard: Overheard) -> dict[str, Any]:
    environ = request.environ
    return {
        "method": request.method,
        "path": mask_query(environ.get("RAW_URI") or request.full_path.rstrip("?")),
        "client": environ.get("REMOTE_ADDR"),
        "headers": mask_headers(request.headers),
        "body": _text(heard.kept, heard.bytes_read),
    }


def _answered(reply: Reply) -> dict[str, Any]:
    body: Iterable[Any] = reply.response
    whole = b"".join(body) if isinstance(body, list | tuple) else None
    return {
        "status": reply.status_code,
        "response_headers": mask_headers(reply.headers),
        "response": "(stream)" if whole is None else _text(whole[:MOST_BYTES], len(whole)),
    }


def _text(kept: bytes, length: int) -> str:
    text = mask_text(kept.decode(errors="replace"))
    return text if len(kept) == length else f"{text}... ({length} bytes)"
