"""Errors as clients of vLLM know them: the one place where what went wrong becomes status and body."""

from __future__ import annotations

import logging

from app.http.context import RequestContext
from app.http.errors import ApiError, bad_request, internal, not_found
from app.http.response import Response, json_response
from app.lora.registry import AdapterError, AdapterNotFound
from app.tokenization.base import TokenizerInputError, TokenizerServiceError

log = logging.getLogger(__name__)


def as_api_error(error: Exception) -> ApiError:
    """`error` as the client is to see it. What nobody expected is logged, and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AdapterNotFound):
        return not_found(str(error))
    if isinstance(error, AdapterError):
        return ApiError(400, "InvalidUserInput", str(error))
    if isinstance(error, TokenizerInputError):
        return bad_request(str(error))
    if isinstance(error, TokenizerServiceError):
        log.error("the tokenizer service failed: %s", error)
        return internal(str(error))
    log.error("a request failed unexpectedly", exc_info=error)
    return internal("The server failed to handle the request.")


def error_response(error: Exception) -> Response:
    """The answer to a request that raised `error`."""
    known = as_api_error(error)
    forget_frames(error)
    return json_response(known.body(), known.status, known.headers)


def respond_to_error(error: Exception, context: RequestContext) -> Response:
    """As `error_response`, in the form of the route's family."""
    route = context.route
    on_error = error_response if route is None or route.on_error is None else route.on_error
    response = on_error(error)
    if context.method == "HEAD":
        response.without_body()
    return response


def forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that `error` came through.

    Frames that know their error, by a request that holds it, for one, are cyclic garbage, and a server
    that fails on purpose makes much of it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
