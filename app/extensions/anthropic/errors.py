"""Errors of the Anthropic family."""

from msgspec import UNSET

from app.core.api.errors import as_api_error, forget_frames
from app.core.protocol.common import encode
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response, json_response
from app.extensions.anthropic.protocol import ErrorDetail, ErrorResponse


class ThreadNotFoundError(ApiError):
    """No stored conversation has this id.

    `details` make Anthropic's SDK send the whole conversation again.
    """

    details = {"error_code": "thread_not_found"}

    def __init__(self, message_id: str) -> None:
        super().__init__(
            404, "NotFoundError", f"There is no thread of the message {message_id[:80]!r} here."
        )


def message_error(error: Exception) -> Response:
    """Returns the response for `error`; a misfit to the schema keeps OpenAI's shape."""
    api_error = as_api_error(error)
    forget_frames(error)
    body = error_body(api_error)
    if api_error.type == "Bad Request":
        body = api_error.body()
    return json_response(body, api_error.status, api_error.headers)


def error_event(error: Exception) -> bytes:
    """Returns the event of a stream that ends with `error`."""
    return b"event: error\ndata: " + error_body(as_api_error(error)) + b"\n\n"


def error_body(error: ApiError) -> bytes:
    """Returns `error` as JSON, in Anthropic's shape."""
    details = error.details if isinstance(error, ThreadNotFoundError) else UNSET
    return encode(ErrorResponse(ErrorDetail(error.type, error.message, details)))
