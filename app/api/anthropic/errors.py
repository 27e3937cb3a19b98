"""Errors as clients of the Anthropic family know them (vllm-api.md section 7)."""

from __future__ import annotations

import logging

from flask import Blueprint

from app.api.errors import forget_frames
from app.http.errors import ApiError, bad_request, internal
from app.http.response import Reply, json_reply
from app.protocol.anthropic_response import ErrorDetail, ErrorResponse
from app.protocol.encoding import encode
from app.tokenization.base import TokenizerInputError, TokenizerServiceError

log = logging.getLogger(__name__)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What an error is called by its status; others are the server's from 500 on, else the request's."""

SCHEMA = "Bad Request"
"""Type of what does not fit the schema: it is refused before this family begins, in OpenAI's shape."""


def init_errors(routes: Blueprint) -> None:
    """Have every error of `routes` leave in this family's form, except those of the schema."""
    routes.register_error_handler(Exception, _reply)


def error_body(error: ApiError) -> bytes:
    """The compact JSON body: ``{"type":"error","error":{"type","message"}}``."""
    kind = TYPES.get(error.status) or ("api_error" if error.status >= 500 else TYPES[400])
    # A message may quote a lone surrogate of the client.
    message = error.message.encode("utf-8", "replace").decode()
    return encode(ErrorResponse(ErrorDetail(kind, message)))


def error_event(error: Exception) -> bytes:
    """The event of an error that came after the stream had begun."""
    return b"event: error\ndata: " + error_body(_known(error)) + b"\n\n"


def _reply(error: Exception) -> Reply:
    known = _known(error)
    forget_frames(error)
    body = known.body() if known.type == SCHEMA else error_body(known)
    return json_reply(body, known.status, known.headers)


def _known(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TokenizerInputError):
        return bad_request(str(error))
    if isinstance(error, RecursionError):  # the input of a tool, one level below what cannot be parsed
        return bad_request("The request is nested too deeply.")
    if isinstance(error, TokenizerServiceError):
        log.error("the tokenizer service failed: %s", error)
        return internal(str(error))
    log.error("a request failed unexpectedly", exc_info=error)
    return internal("The server failed to handle the request.")
