"""Changes of vLLM 0.15 to errors."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change
from app.extensions.past_releases.boundary import TextError
from app.extensions.past_releases.long_prompts import fail_with_cause
from app.extensions.past_releases.paths import CHATS, VALIDATED

PATHS = (*CHATS, "/v1/messages")


def fail_with_phrase(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error that no rule foresees, whose type is the phrase of the status."""
    if error.type != "InternalServerError" or isinstance(error, TextError):
        return None
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return ApiError(status, status.phrase, error.message)


CHANGES = (
    Change(
        area="Errors",
        before="An error that no rule foresees has the type `Internal Server Error`.",
        after="The error has the type `InternalServerError`.",
        forms=(Answer(paths=VALIDATED, failure=fail_with_phrase),),
    ),
    Change(
        area="Errors",
        before="The error of a conversation that is too long ends with `None`; its `param` is "
        "null.",
        after="The error ends with the field and its value; `param` is the field.",
        forms=(Answer(paths=PATHS, failure=fail_with_cause),),
    ),
)
