"""`log-http`: logs each request with its whole answer as one line of JSON; secrets are masked."""

import json
import logging

from app.core.base.clock.pause import call_long
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from config.settings import LogSettings

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 512 << 10
"""Most bytes of a body that are logged; further bytes are cut off."""


class HttpLog(Middleware):
    """Logs each request with its whole answer, if `log-http` is on."""

    active = False
    most_plain_bytes = 1 << 13

    def on_log(self, log_settings: LogSettings) -> None:
        """Switches the log."""
        self.active = log_settings.log_http

    def end(self, context: RequestContext, response: Response) -> None:
        """Writes the line. An unread part of the request's body is missing."""
        if not log.isEnabledFor(logging.INFO):
            return
        from app.core.server.middleware.masking import mask_headers, mask_query  # for this log only

        request_headers = [(name.title(), value) for name, value in context.headers.items()]
        request_body = context.part if context.body is None else context.body
        line = {
            "method": context.method,
            "path": mask_query(context.target),
            "client": context.client,
            "headers": dict(mask_headers(request_headers)),
            "body": _text(request_body, context.content_type or ""),
            "status": response.status,
            "response_headers": dict(mask_headers(response.headers.items())),
            "response": _response_text(response),
        }
        log.info("%s", json.dumps(line))


def _response_text(response: Response) -> str:
    body = response.body
    if isinstance(body, list | tuple):
        body = b"".join(body)
    if isinstance(body, bytes) and not response.streamed:
        return _text(body)
    return "(stream)"


def _text(data: bytes, content_type: str = "") -> str:
    from app.core.server.middleware.masking import mask_text, without_cut_url

    text = data[:MAX_BODY_BYTES].decode(errors="replace")
    end = ""
    if len(data) > MAX_BODY_BYTES:
        text = without_cut_url(text)
        end = f"... ({len(data)} bytes)"
    return call_long(len(text), mask_text, text, content_type=content_type) + end
