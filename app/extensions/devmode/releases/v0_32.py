"""Changes of vLLM 0.32 to the routes for developers."""

from http import HTTPStatus

from app.core.server.http.errors import ApiError, malformed
from app.core.versions.change import Answer, Change, JsonObject

RPC = ("/collective_rpc", "/abort_requests")
NO_OBJECT = "Request body must be a JSON object"


def fail_with_attribute_error(error: ApiError, request: JsonObject) -> ApiError | None:
    """Returns the error of a list without `get`."""
    if error.message != NO_OBJECT:
        return None
    message = "'list' object has no attribute 'get'"
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", message)


def fail_with_missing_key(error: ApiError, request: JsonObject) -> ApiError | None:
    """Returns the error of a body without weights."""
    if "update_info" in request or error.status != HTTPStatus.BAD_REQUEST:
        return None
    return malformed("Missing 'update_info' in request body")


CHANGES = (
    Change(
        area="Development",
        before="`/sleep` and `/wake_up` answer with an empty body.",
        after="They answer with the state as JSON.",
        forms=(Answer(paths=("/sleep", "/wake_up"), empty=True),),
    ),
    Change(
        area="Development",
        before="A body of `/collective_rpc` or `/abort_requests` that is a list fails with 500.",
        after="It fails with 400.",
        forms=(Answer(paths=RPC, failure=fail_with_attribute_error),),
    ),
    Change(
        area="Development",
        before="`/update_weights` without `update_info` fails with a sentence.",
        after="It fails with a validation error of the field.",
        forms=(Answer(paths=("/update_weights",), failure=fail_with_missing_key),),
    ),
)
