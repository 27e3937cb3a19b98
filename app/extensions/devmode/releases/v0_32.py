"""Changes of vLLM 0.32 to the routes for developers."""

from http import HTTPStatus

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, malformed
from app.core.versions.change import Answer, Change, Rules

ACTION_RULES = "app.extensions.devmode.engine_actions.ActionRules"
RPC = ("/collective_rpc", "/abort_requests")
WEIGHT_ROUTES = ("/update_weights", "/init_weight_transfer_engine")
INFOS = ("update_info", "init_info")
"""Fields of their bodies that are required."""
NO_OBJECT = "Request body must be a JSON object"


def fail_with_attribute_error(error: ApiError, request: JsonObject) -> ApiError | None:
    """Returns the error of a list without `get`."""
    if error.message != NO_OBJECT:
        return None
    message = "'list' object has no attribute 'get'"
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", message)


def fail_with_missing_key(error: ApiError, request: JsonObject) -> ApiError | None:
    """Returns the error of a body without weights, or without the way to transfer them."""
    name = str(error.param).removeprefix("body.")
    if name not in INFOS or name in request or error.status != HTTPStatus.BAD_REQUEST:
        return None
    return malformed(f"Missing '{name}' in request body")


def any_level() -> JsonObject:
    """Returns the query whose level has no limits."""
    from app.extensions.devmode.engine_actions import UnlimitedSleepQuery

    return {"sleep_query": UnlimitedSleepQuery}


CHANGES = (
    Change(
        area="Development",
        before="`/sleep` accepts any level.",
        after="The level is 0, 1 or 2.",
        forms=(Rules(ACTION_RULES, any_level),),
        routes=("/sleep",),
    ),
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
        before="`/update_weights` without `update_info`, and `/init_weight_transfer_engine` "
        "without `init_info`, fail with a sentence.",
        after="They fail with a validation error of the field.",
        forms=(Answer(paths=WEIGHT_ROUTES, failure=fail_with_missing_key),),
    ),
)
