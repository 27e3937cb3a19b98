"""Errors as clients of vLLM know them: maps every exception to status and body."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from app.engine.core import errors as engine
from app.engine.core.errors import EngineError
from app.engine.lora import AdapterError, AdapterNotFound
from app.serving.http import errors as http
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, internal
from app.serving.http.response import CLIENT_GONE, Response, json_response
from app.text.base import TokenizerInputError, TokenizerServiceError

log = logging.getLogger(__name__)

KNOWN_ERRORS: Mapping[type[Exception], Callable[[str], ApiError]] = {
    engine.Draining: http.unavailable,
    engine.TooManyRequests: http.unavailable,
    engine.QueueFull: http.too_many,
    engine.PromptExceedsCache: bad_request,
    engine.Aborted: http.unavailable,
    engine.EngineDead: http.unavailable,
    engine.EngineFailed: internal,
    engine.CommandFailed: internal,
    engine.RequestRefused: bad_request,
    engine.SchemaUnsatisfiable: bad_request,
    engine.CallerLeft: partial(ApiError, CLIENT_GONE, "ClientClosedRequest"),
    engine.PauseNotComplete: internal,
    engine.MemoryNotResident: internal,
    AdapterNotFound: http.not_found,
    RecursionError: lambda text: bad_request("The request is nested too deeply."),
    AdapterError: partial(ApiError, 400, "InvalidUserInput"),
}


def as_api_error(error: Exception) -> ApiError:
    """Converts `error` for the client. An unexpected error is logged, not shown."""
    if isinstance(error, ApiError):
        return error
    if (known := KNOWN_ERRORS.get(type(error))) is not None:
        return known(str(error))
    if isinstance(error, TokenizerInputError):
        return bad_request(str(error), error.param)
    if isinstance(error, TokenizerServiceError):
        log.error("the tokenizer service failed: %s", error)
        return internal(str(error))
    log.error("a request failed unexpectedly", exc_info=error)
    return internal("The server failed to handle the request.")


def as_stream_error(error: Exception) -> ApiError:
    """Converts `error`, which ended a generation that had begun, for the client."""
    if isinstance(error, engine.EngineDead):
        return internal(str(error))
    if isinstance(error, ApiError | EngineError):
        return as_api_error(error)
    return internal("The generation failed.")


def error_response(error: Exception) -> Response:
    known = as_api_error(error)
    forget_frames(error)
    return json_response(known.body(), known.status, known.headers)


def respond_to_error(error: Exception, context: RequestContext) -> Response:
    route = context.route
    on_error = error_response if route is None or route.on_error is None else route.on_error
    return on_error(error)


def forget_frames(error: BaseException | None) -> None:
    """Drops the frames that `error` came through: one that knows its error is cyclic garbage."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
