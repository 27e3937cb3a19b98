"""`log-http`: logs each request with its whole answer as one line of JSON; secrets are masked."""

import json
import logging

from app.base.clock.pause import call_long
from app.serving.http.context import RequestContext
from app.serving.http.response import Response
from app.serving.middleware.masking import mask_headers, mask_query, mask_text, without_cut_url
from app.serving.middleware.stack import Middleware
from config.settings import Settings

log = logging.getLogger(__name__)

MOST_BYTES = 512 << 10
"""Most bytes of a body that are logged; the rest is cut off."""


class HttpLog(Middleware):
    active = False
    most_plain_bytes = 1 << 13

    def on_settings(self, settings: Settings) -> None:
        self.active = settings.log.log_http

    def end(self, context: RequestContext, response: Response) -> None:
        """Writes the line. An unread part of the request's body is missing."""
        if not log.isEnabledFor(logging.INFO):
            return
        body = response.body
        whole = b"".join(body) if isinstance(body, list | tuple) else body
        sent = context.part if context.body is None else context.body
        line = {
            "method": context.method,
            "path": mask_query(context.target),
            "client": context.client,
            "headers": dict(
                mask_headers((name.title(), it) for name, it in context.headers.items())
            ),
            "body": _text(sent, context.content_type or ""),
            "status": response.status,
            "response_headers": dict(mask_headers(response.headers.items())),
            "response": _text(whole)
            if isinstance(whole, bytes) and not response.streamed
            else "(stream)",
        }
        log.info("%s", json.dumps(line))


def _text(data: bytes, content_type: str = "") -> str:
    text = data[:MOST_BYTES].decode(errors="replace")
    is_cut = len(data) > MOST_BYTES
    if is_cut:
        text = without_cut_url(text)
    text = call_long(len(text), mask_text, text, content_type=content_type)
    return f"{text}... ({len(data)} bytes)" if is_cut else text
