"""Changes of vLLM 0.27 to the routes of scale-out."""

from typing import Any

from app.core.server.http.errors import ApiError, malformed
from app.core.versions.change import Answer, Change, Reading

GENERATE = "/inference/v1/generate"
OF_SAMPLING = ("max_tokens must be ", "temperature must be ", "top_p must be ")
"""How errors of `sampling_params` begin."""
DERENDERED = ("/v1/chat/completions/derender", "/v1/completions/derender")
NEW_PART = ("DerenderChatRequest.", "DerenderCompletionRequest.")
"""Parts of the paths of fields that name one of two types of requests."""


def ignore_stream(request: Any) -> None:
    """Answers as a whole."""
    request.pop("stream", None)


def fail_with_short_path(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a field whose path does not name the type of the request."""
    param = str(error.param)
    message = error.message
    for part in NEW_PART:
        param = param.replace(part, "")
        message = message.replace(part, "")
    return ApiError(error.status, error.type, message, param) if error.param else None


def fail_as_schema(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a sampling parameter, which is checked with the schema."""
    if error.type == "BadRequestError" and error.message.startswith(OF_SAMPLING):
        return malformed(error.message, error.param)
    return None


CHANGES = (
    Change(
        area="Scale-out",
        before="`sampling_params` out of range fail with the type `Bad Request`.",
        after="They fail with the type `BadRequestError`.",
        forms=(Answer(paths=(GENERATE,), failure=fail_as_schema),),
    ),
    Change(
        area="Scale-out",
        before="Tokens are derendered as a whole; `stream` is ignored.",
        after="With `stream`, the events of a stream are derendered one by one.",
        forms=(
            Reading(paths=DERENDERED, read=ignore_stream),
            Answer(paths=DERENDERED, failure=fail_with_short_path),
        ),
    ),
)
