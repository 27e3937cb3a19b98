"""Errors as clients of vLLM know them: maps every exception to status and body."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from app.core.base.overload import (
    ClientLeftError,
    MemoryExceededError,
    MemoryFullError,
    SlotsBusyError,
)
from app.core.engine import errors as engine
from app.core.engine.errors import EngineError
from app.core.engine.lora import AdapterError, AdapterNotFoundError, AdapterUnusableError
from app.core.server.http import errors as http
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.server.http.response import CLIENT_GONE, Response, json_response
from app.core.text.base import TokenizerInputError, TokenizerServiceError

log = logging.getLogger(__name__)

UNAVAILABLE_NOW = partial(http.unavailable, headers={"Retry-After": "1"})
API_ERRORS: Mapping[type[Exception], Callable[[str], ApiError]] = {
    engine.DrainingError: http.unavailable,
    engine.ShutdownError: internal,
    engine.TooManyRequestsError: http.unavailable,
    engine.QueueFullError: http.too_many,
    engine.PromptExceedsCacheError: bad_request,
    engine.AbortedError: http.unavailable,
    engine.EnginePausedError: partial(ApiError, 503, "ServiceUnavailableError"),
    engine.EngineDeadError: http.unavailable,
    engine.EngineFailedError: internal,
    engine.CommandFailedError: internal,
    engine.RequestRejectedError: bad_request,
    engine.UnsatisfiableSchemaError: bad_request,
    engine.PauseNotCompleteError: internal,
    engine.MemoryNotResidentError: internal,
    MemoryFullError: UNAVAILABLE_NOW,
    MemoryExceededError: http.too_large,
    SlotsBusyError: UNAVAILABLE_NOW,
    ClientLeftError: partial(ApiError, CLIENT_GONE, "ClientClosedRequest"),
    AdapterNotFoundError: http.not_found,
    AdapterUnusableError: internal,
    AdapterError: partial(ApiError, 400, "InvalidUserInput"),
}
"""Converts the message of an error of each type; a subclass needs a separate entry."""


def as_api_error(error: Exception) -> ApiError:
    """Converts `error` for the client. An unexpected error is logged, not shown."""
    if isinstance(error, ApiError):
        return error
    convert = API_ERRORS.get(type(error))
    if convert is not None:
        return convert(str(error))
    if type(error) is RecursionError:
        return bad_request("The request is nested too deeply.")
    if isinstance(error, TokenizerInputError):
        return bad_request(str(error), error.param, error.value)
    if isinstance(error, TokenizerServiceError):
        log.error("the tokenizer service failed: %s", error)
        return internal(str(error))
    log.error("a request failed unexpectedly", exc_info=error)
    return internal("The server failed to handle the request.")


def as_stream_error(error: Exception) -> ApiError:
    """Converts `error`, which ended a running generation, for the client."""
    if isinstance(error, engine.EngineDeadError):
        return internal(str(error))
    if isinstance(error, ApiError | EngineError):
        return as_api_error(error)
    return internal("The generation failed.")


def error_response(error: Exception) -> Response:
    """Returns the response for `error`, in OpenAI's shape."""
    api_error = as_api_error(error)
    forget_frames(error)
    return json_response(api_error.body(), api_error.status, api_error.headers)


def respond_to_error(error: BaseException, context: RequestContext) -> Response:
    """Returns the response for `error`, in the shape of the route's family."""
    if not isinstance(error, Exception):  # such as a panic of a library in Rust
        unexpected = RuntimeError(f"{type(error).__name__}: {error}")
        unexpected.__cause__ = error
        error = unexpected
    if context.route is None or context.route.on_error is None:
        return error_response(error)
    return context.route.on_error(error)


def forget_frames(error: BaseException | None) -> None:
    """Drops the frames that `error` came through.

    A frame with a reference to its error is cyclic garbage.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
