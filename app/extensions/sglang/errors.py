"""Errors in SGLang's three forms.

* `form_error`: a flat object, for invalid bodies and queries, and for the OpenAI routes;
* `value_error`: an object with a message, for values that a rule of `/generate` rejects;
* `contract_error`: a text, for fields of `/generate` that the schema rejects.
"""

from app.core.api.errors import as_api_error, forget_frames
from app.core.engine.errors import QueueFullError
from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response, json_response

QUEUE_IS_FULL = "The request queue is full."


class ContractError(ApiError):
    """A body of `/generate` against the schema, which SGLang reports as a text."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "Bad Request", message)


def flat(status: int, error_type: str, message: str, param: str | None = None) -> JsonObject:
    """Returns the body of an error in the flat form."""
    return {
        "object": "error",
        "message": message,
        "type": error_type,
        "param": param,
        "code": status,
    }


def as_sglang_error(error: Exception) -> ApiError:
    """Converts `error` for the client: SGLang rejects requests with 503 when its queue is full."""
    if isinstance(error, QueueFullError):
        return ApiError(503, "503", QUEUE_IS_FULL)
    return as_api_error(error)


def form_error(error: Exception) -> Response:
    """Returns the response for `error` in the flat form."""
    api_error = as_sglang_error(error)
    forget_frames(error)
    error_type = api_error.type
    if api_error.status != 400:
        error_type = str(api_error.status)
    body = flat(api_error.status, error_type, api_error.message)
    return json_response(body, api_error.status, api_error.headers)


def generate_error(error: Exception) -> Response:
    """Returns the response for an error of `/generate`."""
    api_error = as_sglang_error(error)
    forget_frames(error)
    if isinstance(api_error, ContractError):
        return json_response({"error": api_error.message}, api_error.status)
    if api_error.status != 400 or api_error.type == "Bad Request":
        return form_error(api_error)
    return json_response({"error": {"message": api_error.message}}, 400)
